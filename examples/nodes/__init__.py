"""Three engines in three processes that hold one conversation: `make demo-nodes`."""

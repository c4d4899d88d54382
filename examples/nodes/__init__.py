"""Three engines in three processes that share one conversation: `make demo-nodes`."""

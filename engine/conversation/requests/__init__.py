"""The requests of a conversation: each is fitted to the model that it goes to."""

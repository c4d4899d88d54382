"""Replies that a provider makes in the background: they go on without us, and are taken up again by their ids."""

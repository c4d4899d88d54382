"""A search over what was captured: the words of messages, found again in either database."""

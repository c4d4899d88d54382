"""Calls without a session: one conversation, from its first message to its last, in one call."""

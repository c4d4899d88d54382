"""Calls without a session: one conversation or one object."""

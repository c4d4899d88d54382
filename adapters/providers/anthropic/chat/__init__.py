"""Conversations by the Messages API: how a request is written, and how its reply is read."""

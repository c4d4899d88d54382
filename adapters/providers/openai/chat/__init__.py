"""Conversations by the Responses API: how a request is written, and how its reply is read."""

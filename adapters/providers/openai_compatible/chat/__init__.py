"""Conversations by Chat Completions: how a request is written, and how its reply is read."""

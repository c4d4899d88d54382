"""Replies that are data: requested, checked, and shown while they grow."""

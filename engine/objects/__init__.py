"""Replies that are data: asked for, checked, and shown while they grow."""

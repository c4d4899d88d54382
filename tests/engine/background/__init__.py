"""Replies in the background through the whole engine, over the death of a process and over its close."""

"""Replies that a provider makes in the background, against books and under faults."""

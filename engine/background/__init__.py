"""Replies that a provider makes in the background: found in the trace after their process, and taken up."""

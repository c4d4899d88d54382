"""The differences between servers of Chat Completions, as data."""

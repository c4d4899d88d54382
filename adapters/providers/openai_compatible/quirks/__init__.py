"""How servers of Chat Completions differ, as data."""

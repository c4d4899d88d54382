"""A provider that is a recording: the adapter of what was recorded plays it, or records it."""

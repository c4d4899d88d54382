"""The tables, indexes and triggers of a trace file, as numbered steps."""

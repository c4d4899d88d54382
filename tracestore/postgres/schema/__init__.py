"""The tables, indexes and triggers of a trace in PostgreSQL, as numbered steps."""

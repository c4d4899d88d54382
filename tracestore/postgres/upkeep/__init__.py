"""Retention, backup, and the condition of a trace in PostgreSQL."""

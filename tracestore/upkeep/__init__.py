"""Retention, backup, and whether a trace file is well."""

"""Refusals by providers: classified errors, and repaired requests."""

"""Retention, and the deletion of content."""

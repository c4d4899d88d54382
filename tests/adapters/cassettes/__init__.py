"""Recorded HTTP, replayed."""

"""Typed events, their envelope, and the catalogue."""

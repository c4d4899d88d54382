"""Errors of providers: told apart, and mended for one more try."""

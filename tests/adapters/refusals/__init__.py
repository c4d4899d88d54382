"""Errors of providers: their classification, and repairs for one more attempt."""

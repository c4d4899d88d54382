"""Batches: many requests for one model, answered later and for less; created, found again, awaited and counted."""

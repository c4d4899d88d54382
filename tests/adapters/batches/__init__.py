"""Batches as adapters have them."""

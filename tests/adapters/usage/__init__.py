"""Counting tokens, estimating them, and what a bill is made of."""

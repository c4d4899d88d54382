"""Batches as an engine has them, at a server that keeps books."""

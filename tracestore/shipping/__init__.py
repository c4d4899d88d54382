"""Shipping: copies the trace file of a machine to a shared store, without lost or duplicate events."""

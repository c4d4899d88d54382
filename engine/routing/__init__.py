"""Which model serves a call."""

"""The streaming channel: one append-only log for each stream."""

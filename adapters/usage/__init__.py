"""Token counts: read, completed and estimated."""

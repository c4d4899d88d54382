"""The command of batches: JSON lines in, JSON lines out."""

"""Token counts, estimates, and the parts of a bill."""

"""Which models there are, under which names, and which adapter serves each."""

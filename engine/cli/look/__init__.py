"""Commands that look at what a trace file holds."""

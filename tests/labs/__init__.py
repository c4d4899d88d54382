"""The labs run correctly: a few rounds of each."""

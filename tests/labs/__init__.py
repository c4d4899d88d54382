"""The labs run, and say what they should: a few rounds of each."""

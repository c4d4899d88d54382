"""Price tables: what a call costs, as a function of one immutable table."""

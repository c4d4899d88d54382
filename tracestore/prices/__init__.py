"""Price tables: the cost of a call as a function of one immutable table."""

"""Imports: store calls from the records of other programs in the trace."""

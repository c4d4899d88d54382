"""Imports: calls from the records of other programs, stored in this program's trace."""

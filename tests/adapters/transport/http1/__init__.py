"""Callboard's HTTP/1.1 client."""

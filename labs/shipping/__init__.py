"""Shipping a trace file to a server that is stopped, cut off, filled up, by shippers that are killed."""

"""Faults of a cluster with three nodes, each in a process of its own."""

"""Budgets that the nodes of a cluster share: slices of what is left, and the part of a node that gets them."""

"""A deterministic simulation of many nodes: the machines of production, against models of what they share."""

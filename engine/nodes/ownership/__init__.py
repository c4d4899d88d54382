"""Whose a session is: the lease of a node, the sessions that it holds, and how they go to another node."""

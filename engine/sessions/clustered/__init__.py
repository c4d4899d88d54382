"""Sessions of an engine in a cluster: the right of a turn to act, and sessions that are taken over."""

"""Events of other processes: a bus that gives what their bridges send, in order and without a gap."""

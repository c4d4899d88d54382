"""An engine in a cluster of nodes that share a trace in PostgreSQL and messages over NATS."""

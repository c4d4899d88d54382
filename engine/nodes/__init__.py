"""An engine among others: one cluster of nodes that share a trace in PostgreSQL and messages over NATS."""

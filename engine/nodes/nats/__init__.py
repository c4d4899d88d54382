"""The broker: the one place that knows nats-py. Nothing here is imported unless a cluster has a broker."""

"""What the nodes of a cluster share in PostgreSQL."""

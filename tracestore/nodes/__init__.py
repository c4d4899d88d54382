"""What the nodes of a cluster share in a store: values, and interfaces that databases fulfil."""

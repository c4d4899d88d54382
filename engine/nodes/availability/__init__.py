"""The availability of providers, as all nodes of a cluster have found it."""

"""The keys that `callboard keys` keeps, in a file beside models.yaml that its owner alone may read."""

"""The writer from the bus to the store, in batches, losing nothing that it can keep."""

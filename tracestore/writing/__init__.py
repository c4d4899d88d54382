"""The writer from the bus to the store. It writes in batches, and loses no event that it can keep."""

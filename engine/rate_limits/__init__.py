"""The rate limits of providers, declared or learned, and the queue of requests."""

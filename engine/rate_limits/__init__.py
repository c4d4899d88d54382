"""The rate limits of providers: declared or learned, and who may send a request now."""

"""One folder for each provider, with its descriptor in `provider.py`; none imports another."""

"""One folder for each provider, with a descriptor in `provider.py`."""

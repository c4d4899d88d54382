"""HTTP for all providers, with every failure as an AdapterError."""

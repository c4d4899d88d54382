"""Compares the adapters' results with recorded traffic of real providers."""

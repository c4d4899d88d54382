"""The models of an engine, their names, and the adapters that serve them."""

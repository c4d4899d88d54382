"""The prices of an engine's new calls, and repricing."""

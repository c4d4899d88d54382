"""Functions that work without an engine of your own, with and without an event loop."""

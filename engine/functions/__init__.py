"""Functions that need no engine of your own, with and without an event loop."""

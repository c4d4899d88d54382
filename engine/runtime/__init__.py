"""The shared parts of one engine, and its life on one event loop."""

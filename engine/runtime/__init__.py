"""What the parts of one engine share, and its life on one event loop."""

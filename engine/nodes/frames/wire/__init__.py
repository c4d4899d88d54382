"""The wire form of frames, and events of a log as their entries."""

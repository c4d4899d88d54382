"""The shared parts of one engine, and the start and stop of the engine on its event loop."""

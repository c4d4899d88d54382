"""The functions of those who hold no engine: on a default one, with and without an event loop."""

"""The live view: an ASGI application that shows an engine or a trace in a browser."""

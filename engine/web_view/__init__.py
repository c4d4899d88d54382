"""The live view: an engine, or a trace, as a page in a browser, served by an ASGI application."""

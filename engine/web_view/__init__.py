"""The live view: an engine, or a trace, as a page in a browser. An ASGI application, and the page's files."""

"""An HTTP/1.1 client on asyncio and httptools: connections kept alive, and every failure as an AdapterError."""

"""An HTTP/1.1 client on asyncio and httptools."""

"""HTTP by httpx and httpcore: behind proxies, on trio, and over a client of the host's."""

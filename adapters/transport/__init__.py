"""HTTP for all providers: bytes out, bytes in, connections kept alive, and every failure as an AdapterError."""

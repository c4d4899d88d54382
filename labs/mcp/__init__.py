"""MCP servers under random kills, and the protocol's own conformance suite."""

"""Random kills of MCP servers, and the protocol's conformance suite."""

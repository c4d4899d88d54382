"""The shop's MCP server, over stdio: python shop.py. In practice it belongs to another team or a vendor."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

ORDERS = {
    "A-17": "A-17: a music stand, 12.50 USD, delivered on Monday",
    "B-4": "B-4: two metronomes, 61.00 USD, on its way",
}

server: MCPServer = MCPServer("shop")


@server.tool()
def find_order(number: str) -> str:
    """Find an order by its number, such as A-17."""
    return ORDERS.get(number, f"There is no order {number}.")


if __name__ == "__main__":
    server.run()

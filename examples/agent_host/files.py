"""An MCP server over stdio for the text files of one folder: python files.py FOLDER.

It stands in for `@modelcontextprotocol/server-filesystem`, which needs Node.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()

server: MCPServer = MCPServer("files")


@server.tool()
def list_files() -> list[str]:
    """List the files that can be read."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_file())


@server.tool()
def read_file(name: str) -> str:
    """Read a file by its name in the list."""
    if name not in list_files():  # so no name reaches outside the folder
        raise ValueError(f"there is no file {name}")
    return (FOLDER / name).read_text()


if __name__ == "__main__":
    server.run()

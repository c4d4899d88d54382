"""An MCP server for tests, written with the library's server side. Run it as a program."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 16
server: MCPServer = MCPServer("library")


@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False, title="Look it up"))
def find(title: str, arguments: int = 1) -> str:
    """Find a book."""
    return f"{title} x{arguments}"


@server.tool(name="admin.delete/book", annotations=ToolAnnotations(destructive_hint=True))
def delete(title: str) -> str:
    """Delete a book."""
    return f"deleted {title}"


@server.tool(structured_output=False)
def cover() -> list[object]:
    """Show a cover."""
    return ["the cover:", Image(data=PNG, format="png")]


@server.tool()
def count(numbers: list[int]) -> dict[str, int]:
    """Add numbers up."""
    return {"sum": sum(numbers)}


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("out of paper")


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
async def slow(marks: str, context: Context) -> str:
    """Report progress, and write a file if the call is cancelled."""
    await context.report_progress(1, 4, "started")
    try:
        await anyio.sleep(30)
    except anyio.get_cancelled_exc_class():
        with open(marks, "w") as file:  # noqa: ASYNC230 (a test's mark)
            file.write("cancelled")
        raise
    return "done"


@server.tool()
async def grow(context: Context) -> str:
    """Add a tool."""

    def fresh() -> str:
        """Return a text."""
        return "fresh"

    server.add_tool(fresh)
    await context.notify_tools_changed()
    return "grown"


class Reader(BaseModel):
    """The reader of a book."""

    name: str
    age: int = 30


async def who() -> Elicit[Reader]:
    return Elicit("Who reads?", Reader)


@server.tool()
def lend(reader: Annotated[Reader, Resolve(who)]) -> str:
    """Ask the client's user for the reader."""
    return f"{reader.name} ({reader.age})"


def main() -> None:
    if sys.argv[1:2] in (["http"], ["sse"]):
        import socket

        import uvicorn

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
        listener.listen()
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        app = server.streamable_http_app() if sys.argv[1] == "http" else server.sse_app()
        config = uvicorn.Config(app, log_level="critical")
        uvicorn.Server(config).run(sockets=[listener])
    else:
        server.run()


if __name__ == "__main__":
    main()

"""Tools of MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from callboard.bus.errors import ConfigurationError
from callboard.bus.log import takes_old_names

from .context import NeedsApproval

if TYPE_CHECKING:
    from .mcp_client import McpConnection


def _address(url: str) -> str:
    """A URL without the parts that may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


@takes_old_names(timeout_seconds="timeout")
def mcp_tools(
    server: str | Sequence[str] | object,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    include: Callable[[str], bool] | None = None,
    timeout: float | None = None,
    needs_approval: NeedsApproval | None = None,
    connect_seconds: float = 30.0,
) -> McpConnection:
    """The tools of an MCP server while the context is open: `async with mcp_tools(server) as tools: …`.

    The list of tools is read when the context is entered. A name that models don't accept is changed, with a
    warning. `original_name` has the server's name. A tool with an unusable schema is left out, with a warning. If
    the server dies later, calls of its tools fail, and the model sees the error.

    Args:
        server: A URL (streamable HTTP), a command as a list, or an object that the client library's `Client`
            takes, such as a transport. A command is started and ended with the context.
        env: The environment variables of a command, in addition to the few that the library passes on.
        cwd: The folder in which a command runs.
        headers: The headers of requests to a URL.
        prefix: A text before each name, for servers that have tools of the same name.
        include: A function that returns whether to include a tool, by the server's own name.
        timeout: Seconds for one call of each tool, as in `Tool`.
        needs_approval: Whether calls of the tools need approval, as in `Tool`.
        connect_seconds: Seconds for the server to answer when the context is entered.

    Raises:
        ConfigurationError: The client library is missing, or `server` is none of these.
        CallboardError: The server can't be reached. It is raised when the context is entered.
    """
    try:
        from . import mcp_client
    except ImportError as error:
        raise ConfigurationError(
            f"tools of an MCP server need the official client library ({error}): pip install 'callboard[mcp]'"
        ) from error
    options = mcp_client.McpOptions(
        prefix=prefix,
        include=include,
        timeout=timeout,
        needs_approval=needs_approval,
        connect_seconds=connect_seconds,
    )
    match server:
        case str() if server.startswith(("http://", "https://")):
            client = mcp_client.over_http(server, dict(headers) if headers else None)
            return mcp_client.McpConnection(client, _address(server), options, secrets=(server,))
        case str():
            raise ConfigurationError(
                "mcp_tools takes a URL (http:// or https://), or a command as a list of its parts: "
                f"[{server.partition(' ')[0]!r}, ...]"
            )
        case list() | tuple() if server and all(isinstance(part, str) for part in server):
            command = [str(part) for part in server]
            started = mcp_client.over_stdio(command, dict(env) if env else None, str(cwd) if cwd else None)
            return mcp_client.McpConnection(started, command[0], options)
        case _:
            return mcp_client.McpConnection(mcp_client.client_of(server), type(server).__name__, options)

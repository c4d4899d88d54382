"""Tools of MCP servers. The official client library comes with the extra ``callboard[mcp]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bus.errors import ConfigurationError

from ..approval import NeedsApproval

if TYPE_CHECKING:
    from .client import McpConnection


def _address(url: str) -> str:
    """A URL without what may be a secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def mcp_tools(
    server: str | Sequence[str] | object,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    include: Callable[[str], bool] | None = None,
    timeout_seconds: float | None = None,
    needs_approval: NeedsApproval | None = None,
    connect_seconds: float = 30.0,
) -> McpConnection:
    """An MCP server's tools, as long as the context is open: `async with mcp_tools(server) as tools: …`.

    server: a URL (streamable HTTP); a command as a list, which is started and ended with the context; or whatever
    else the client library's `Client` takes, such as a transport. env: of a command, beside the few variables
    that the library passes on. cwd: where a command runs. headers: of a URL. connect_seconds: for the server to
    answer when the context is entered.
    prefix: before each name, where several servers have tools of one name. include: by the server's own names.
    timeout_seconds, needs_approval: of each tool, as in `Tool`.

    Names that models don't take are changed, with a warning; `original_name` has the server's. A tool whose schema
    can't be used is left out, with a warning. The list is that of the moment of opening.
    Raises ConfigurationError if the library is missing, or the server no such thing; entering it raises
    CallboardError if the server can't be reached. A server that dies later makes its tools' calls fail, for the
    model to see.
    """
    try:
        from . import client as mcp_client
    except ImportError as error:
        raise ConfigurationError(
            f"tools of an MCP server need the official client library ({error}): pip install 'callboard[mcp]'"
        ) from error
    options = mcp_client.McpOptions(
        prefix=prefix,
        include=include,
        timeout_seconds=timeout_seconds,
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

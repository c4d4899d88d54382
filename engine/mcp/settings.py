"""The settings of MCP servers, from a program or from a file in the usual format of MCP hosts.

    {"mcpServers": {"files": {"command": "npx", "args": ["some-server", "${HOME}"], "env": {"TOKEN": "${TOKEN}"}},
                    "search": {"type": "http", "url": "https://example.com/mcp",
                               "headers": {"Authorization": "Bearer ${KEY:-none}"}}}}

Nothing here needs the client library.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.log import Log

if TYPE_CHECKING:
    from ..tools.context import NeedsApproval as Approval
else:
    Approval = Any  # msgspec does not support functions

_log = Log("engine.mcp")

Transport: TypeAlias = Literal["stdio", "http", "sse"]
"""The connection to a server: a command's standard streams, streamable HTTP, or the older HTTP with server-sent
events.
"""

_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",
    "remote": "http",
    "sse": "sse",
}
"""The transports by their names in the files of MCP hosts."""

LONGEST_RESULT = 100_000
"""The default maximum number of characters of a result for the model."""


class McpServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server: its address or command, the tools to offer, and its limits.

    Raises:
        ConfigurationError: There is neither a command nor a URL, or both.
    """

    command: str | None = None
    """The command that starts the server. It runs until the servers are closed."""
    args: Sequence[str] = ()
    """The arguments of the command."""
    env: Mapping[str, str] = {}
    """Environment variables of the command, in addition to a few basic ones such as PATH and HOME."""
    cwd: str | None = None
    """The folder in which the command runs."""
    url: str | None = None
    """The URL of a remote server."""
    type: str | None = None
    """``stdio``, ``http`` (streamable HTTP) or ``sse``. By default a URL means ``http``."""
    headers: Mapping[str, str] = {}
    """The headers of requests to the URL."""
    allow: Sequence[str] | None = None
    """The tools to offer, by the server's own name or by a pattern such as ``read_*``; None offers all."""
    deny: Sequence[str] = ()
    """The tools that are not offered. This takes precedence over `allow`."""
    timeout: float | None = None
    """Seconds for one tool call; None uses the engine's `Timeouts.tool`."""
    connect_timeout: float = 30.0
    """Seconds for the server to start and list its tools."""
    max_result_chars: int = LONGEST_RESULT
    """The maximum number of characters of a result for the model. The middle of a longer text is left out."""
    needs_approval: Approval | None = None
    """Whether calls of the server's tools need approval, as in `Tool`."""
    disabled: bool = False
    """Whether the server is not used."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ConfigurationError("an MCP server has either a command or a url")
        if not (
            self.needs_approval is None or isinstance(self.needs_approval, bool) or callable(self.needs_approval)
        ):
            raise ConfigurationError("needs_approval of an MCP server is true, false or a function")
        transport = self.transport
        if (transport == "stdio") != (self.url is None):
            needs = "a command" if transport == "stdio" else "a url"
            raise ConfigurationError(f"an MCP server of type {self.type!r} has {needs}")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigurationError("the url of an MCP server starts with http:// or https://")

    def __repr__(self) -> str:
        """The settings without environment and headers, which may be secret."""
        return f"McpServerSettings({self.address!r})"

    @property
    def transport(self) -> Transport:
        """The transport for `type`."""
        if self.type is None:
            return "stdio" if self.url is None else "http"
        found = _TRANSPORTS.get(self.type.lower())
        if found is None:
            raise ConfigurationError(f"unknown type {self.type!r} of an MCP server; use stdio, http or sse")
        return found

    @property
    def address(self) -> str:
        """The command or the URL, without the parts that may be secret."""
        if self.url is None:
            return self.command or ""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that must not appear in errors and logs, the longest first."""
        url = () if self.url is None or self.url == self.address else (self.url,)
        values = (value for value in (*self.env.values(), *self.headers.values()) if len(value) >= SHORTEST_SECRET)
        return (*url, *sorted(values, key=len, reverse=True))

    def offers(self, tool: str) -> bool:
        """Whether a tool is offered. `tool` is the server's own name."""
        if any(fnmatchcase(tool, pattern) for pattern in self.deny):
            return False
        return self.allow is None or any(fnmatchcase(tool, pattern) for pattern in self.allow)


SHORTEST_SECRET = 8
"""The minimum length in characters of a value that is treated as a secret. Shorter values occur in ordinary
words.
"""

Given: TypeAlias = "str | Path | Mapping[str, McpServerSettings | Mapping[str, Any]]"
"""The servers: a file, or its content, or settings by the servers' names."""


def settings_of(servers_or_path: Given) -> dict[str, McpServerSettings]:
    """The enabled servers by their names."""
    where = ""
    servers: Mapping[str, Any]
    if isinstance(servers_or_path, Mapping):
        servers = servers_or_path
    else:
        where = f"{servers_or_path}: "
        servers = _read(Path(servers_or_path).expanduser())
    for key in ("mcpServers", "servers"):
        inner = servers.get(key)
        if isinstance(inner, Mapping) and not ({"command", "url"} & inner.keys()):
            servers = inner
            break
    found: dict[str, McpServerSettings] = {}
    for name, entry in servers.items():
        try:
            made = entry if isinstance(entry, McpServerSettings) else _settings(name, entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}MCP server {name!r}: {error}") from None
        if not made.disabled:
            found[name] = made
    return found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # also raised for an encoding other than UTF-8
        at = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ConfigurationError(f"{path}{at}: this is no JSON: {why}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f'{path}: expected an object such as {{"mcpServers": {{...}}}}')
    return content


def _settings(name: str, entry: object) -> McpServerSettings:
    if not isinstance(entry, Mapping):
        raise ConfigurationError("its settings are an object with a command or a url")
    if unknown := sorted(set(entry) - set(McpServerSettings.__struct_fields__)):
        _log.warning("mcp_settings_ignored", server=name, keys=unknown)
    plain = {key: _expanded(value) for key, value in entry.items() if key not in unknown}
    try:
        return msgspec.convert(plain, McpServerSettings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error)) from None


_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def _expanded(value: object) -> object:
    """A value with each `${VAR}` and `${VAR:-default}` replaced."""
    if isinstance(value, str):
        return _VARIABLE.sub(_replacement, value)
    if isinstance(value, Mapping):
        return {key: _expanded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_expanded(each) for each in value]
    return value


def _replacement(found: re.Match[str]) -> str:
    name, default = found.group(1), found.group(2)
    value = os.environ.get(name)
    if default is not None:
        return value or default  # an empty variable is treated as missing, as in a shell
    if value is None:
        raise ConfigurationError(f"the environment variable {name} is not set; ${{{name}:-default}} has a default")
    return value

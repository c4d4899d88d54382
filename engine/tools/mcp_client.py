"""The connection to an MCP server, in a task of its own.

So one task may open the connection and another close it. If the server dies, only this task ends, and the waiting
calls fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import assert_never

import anyio
import msgspec
from mcp import MCPError
from mcp.client import Client
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types import (
    ContentBlock as McpBlock,
)
from mcp_types import (
    Tool as ServerTool,
)

from callboard.adapters import DocumentBlock, ImageBlock, TextBlock, ToolAnnotations, ToolDefinition
from callboard.bus.errors import CallboardError
from callboard.bus.log import Log
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ResultPart

from .context import NeedsApproval, ResultContent, ToolContext, ToolError
from .handler import Tool

# --- Values of an MCP server ---

LONGEST_NAME = 64


def legal_names(names: Iterable[str], prefix: str = "") -> dict[str, str]:
    """A legal name for each name of a server. All are different, and a legal name stays as it is. Pure.

    Names that become equal get a digest of the original, so that neither depends on the order.
    """
    originals = list(dict.fromkeys(names))
    candidates = {name: _legal(prefix + name) for name in originals}
    found: dict[str, str] = {}
    for name, candidate in candidates.items():
        unchanged = candidate == prefix + name
        alone = sum(other == candidate for other in candidates.values()) == 1
        found[name] = candidate if unchanged or alone else _with_digest(candidate, name)
    return found


def _legal(name: str) -> str:
    legal = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not legal[:1].isalpha():
        legal = f"t_{legal}"
    return legal if len(legal) <= LONGEST_NAME else _with_digest(legal, name)


def _with_digest(legal: str, original: str) -> str:
    digest = hashlib.sha256(original.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{legal[: LONGEST_NAME - 9]}_{digest}"


def definition_of(tool: ServerTool, name: str) -> ToolDefinition:
    schema: JsonObject = {"properties": {}, **tool.input_schema, "type": tool.input_schema.get("type", "object")}
    return ToolDefinition(
        name=name,
        description=tool.description or tool.title or "",
        input_schema=schema,
        annotations=annotations_of(tool),
    )


def annotations_of(tool: ServerTool) -> ToolAnnotations | None:
    """The server's own hints about a tool. They are only claims, unless the server is trusted."""
    hints = tool.annotations
    title = tool.title or (hints.title if hints is not None else None)
    if hints is None:
        return ToolAnnotations(title=title) if title else None
    return ToolAnnotations(
        read_only=hints.read_only_hint,
        destructive=hints.destructive_hint,
        idempotent=hints.idempotent_hint,
        open_world=hints.open_world_hint,
        title=title,
    )


def content_of(result: CallToolResult) -> ResultContent:
    """The text and media of a result, or its structured content if there is nothing else.

    A part that models take in no tool's result, such as sound, is replaced by its name.
    """
    parts = tuple(_part(block) for block in result.content)
    content: ResultContent = parts
    if not parts:
        structured = result.structured_content
        content = "" if structured is None else msgspec.json.encode(structured).decode()
    elif len(parts) == 1 and isinstance(parts[0], TextBlock):
        content = parts[0].text
    if result.is_error:
        raise ToolError(content or "The tool failed without an error text.")
    return content


def _part(block: McpBlock) -> ResultPart:
    match block:
        case TextContent():
            return TextBlock(block.text)
        case ImageContent():
            return ImageBlock(data=b64decode(block.data), media_type=block.mime_type)
        case AudioContent():
            return TextBlock(f"(a recording, {block.mime_type}, was left out)")
        case ResourceLink():
            return TextBlock(f"{block.title or block.name}: {block.uri}")
        case EmbeddedResource():
            return _resource(block.resource)
        case _:
            assert_never(block)


def _resource(resource: TextResourceContents | BlobResourceContents) -> ResultPart:
    if isinstance(resource, TextResourceContents):
        return TextBlock(resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    data = b64decode(resource.blob)
    if media_type.startswith("image/"):
        return ImageBlock(data=data, media_type=media_type)
    return DocumentBlock(data=data, media_type=media_type, name=resource.uri.rpartition("/")[2] or None)


_log = Log("engine.tools.mcp")

GONE = "The server of this tool has stopped. Its tools can no longer be used."

MAX_PAGES = 100
"""The number of pages that are read of a server's list of tools."""


@dataclass(frozen=True, eq=False)
class McpTool(Tool):
    original_name: str = ""
    """The server's own name of the tool."""


@dataclass(frozen=True, kw_only=True)
class McpOptions:
    """The options of `mcp_tools`, which describes them."""

    prefix: str = ""
    include: Callable[[str], bool] | None = None
    timeout: float | None = None
    needs_approval: NeedsApproval | None = None
    connect_seconds: float = 30.0


class McpConnection(AbstractAsyncContextManager[tuple[McpTool, ...]]):
    """A connection to an MCP server, open while it is entered.

    Args:
        client: The client library's connection.
        named: The name of the server in errors.
        options: The options of the connection.
        secrets: Texts that must not stand in errors.
    """

    def __init__(
        self,
        client: AbstractAsyncContextManager[Client],
        named: str,
        options: McpOptions,
        *,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._opened = client
        self._named = named
        self._secrets = secrets
        self._options = options
        self._up = asyncio.Event()
        self._stop = asyncio.Event()
        self._client: Client | None = None
        self._tools: tuple[McpTool, ...] = ()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> tuple[McpTool, ...]:
        """The server's tools."""
        if self._task is not None:
            raise CallboardError("this MCP server has already been opened. Call mcp_tools(...) again")
        task = self._task = asyncio.create_task(self._live(), name=f"mcp {self._named}")
        up = asyncio.ensure_future(self._up.wait())
        opened = False
        try:
            await asyncio.wait((up, task), timeout=self._options.connect_seconds, return_when="FIRST_COMPLETED")
            opened = self._up.is_set()
        finally:
            up.cancel()
            if not opened:
                with anyio.CancelScope(shield=True):  # bounded by the library's own limits
                    task.cancel()
                    await asyncio.wait((task,))
        if opened:
            return self._tools
        error = None if task.cancelled() else _unwrapped(task.exception())
        why = f"no answer within {self._options.connect_seconds:g} s" if error is None else self._words(error)
        raise CallboardError(f"the MCP server {self._named} can't be reached: {why}") from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._stop.set()
        with anyio.CancelScope(shield=True):  # bounded by the library's own limits
            await asyncio.wait((self._task,))
        failure = None if self._task.cancelled() else self._task.exception()
        if failure is not None:  # The callers of its tools have already got the failure.
            _log.warning("mcp_server_failed", server=self._named, error=self._words(_unwrapped(failure)))

    async def _live(self) -> None:
        try:
            async with self._opened as client:
                self._client = client
                self._tools = self._made(await _all_tools(client))
                self._up.set()
                await self._stop.wait()
        finally:
            self._client = None

    def _made(self, offered: list[ServerTool]) -> tuple[McpTool, ...]:
        include = self._options.include
        wanted = [tool for tool in offered if include is None or include(tool.name)]
        names = legal_names((tool.name for tool in wanted), self._options.prefix)
        made: list[McpTool] = []
        for tool in wanted:
            name = names[tool.name]
            if name != self._options.prefix + tool.name:
                _log.warning("mcp_tool_renamed", server=self._named, original=tool.name, name=name)
            try:
                made.append(self._tool(tool, name))
            except ValueError as error:
                _log.warning("mcp_tool_left_out", server=self._named, tool=tool.name, error=str(error))
        return tuple(made)

    def _tool(self, tool: ServerTool, name: str) -> McpTool:
        async def execute(arguments: JsonObject, /, context: ToolContext) -> ResultContent:
            return await self._call(tool.name, arguments, context)

        return McpTool(
            definition_of(tool, name),
            execute,
            timeout=self._options.timeout,
            needs_approval=self._options.needs_approval,
            original_name=tool.name,
        )

    async def _call(self, name: str, arguments: JsonObject, context: ToolContext) -> ResultContent:
        """Call a tool of the server. If the caller is cancelled, the server is notified."""
        if self._client is None:
            raise ToolError(GONE)
        try:
            result = await self._client.call_tool(name, arguments, progress_callback=partial(_progressed, context))
        except MCPError as error:
            gone = error.code == CONNECTION_CLOSED
            raise ToolError(
                GONE if gone else f"The server of this tool returned an error: {error.message}"
            ) from error
        return content_of(result)

    def _words(self, error: BaseException | None) -> str:
        """The text of an error, without the secrets that the server's address may hold."""
        text = error.message if isinstance(error, MCPError) else str(error)
        for secret in self._secrets:
            text = text.replace(secret, self._named)
        return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _progressed(context: ToolContext, progress: float, total: float | None, message: str | None) -> None:
    context.progress(message, progress / total if total else None)


async def _all_tools(client: Client) -> list[ServerTool]:
    found: list[ServerTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return found


@asynccontextmanager
async def over_http(url: str, headers: dict[str, str] | None) -> AsyncIterator[Client]:
    """A client of a streamable HTTP server."""
    from mcp.client.streamable_http import streamable_http_client

    async with contextlib.AsyncExitStack() as stack:
        http = None
        if headers:
            import httpx2  # the client library's own

            timeout = httpx2.Timeout(30.0, read=300.0)  # that library's defaults
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        yield await stack.enter_async_context(client_of(streamable_http_client(url, http_client=http)))


def over_stdio(command: list[str], env: dict[str, str] | None, cwd: str | None) -> Client:
    """A client of a server that is started for it. They speak over the server's standard streams."""
    from mcp.client.stdio import StdioServerParameters

    return client_of(StdioServerParameters(command=command[0], args=command[1:], env=env, cwd=cwd))


def client_of(server: object) -> Client:
    """A client for any server that the client library supports."""
    return Client(server, client_info=Implementation(name="callboard", version=_version()))  # type: ignore[arg-type]


def _version() -> str:
    try:
        return version("callboard")
    except PackageNotFoundError:  # run from a checkout that isn't installed
        return "0"


def _unwrapped(error: BaseException | None) -> BaseException | None:
    """The error in nested groups of one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error

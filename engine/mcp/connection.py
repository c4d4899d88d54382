"""One connection to an MCP server, from its start to its end. A restart makes a new one.

    connect ── list the tools ── up ─┬─ the server's list has changed: list again ─┐
                                     │◀──────────────────────────────────────────┘ └─ the server has ended, or a
                                     call failed because of that: `ServerGone`

A connection runs in one task, because the library's task groups must be entered and left in the same task. Calls
come from other tasks. If the server dies, the library ends each call in progress with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from callboard.bus.errors import CallboardError
from callboard.bus.log import Log

from ..tools.context import ToolContext
from .hooks import Callbacks, CallInProgress, current_call
from .settings import McpServerSettings

_log = Log("engine.mcp")

logging.getLogger("mcp").addHandler(logging.NullHandler())  # otherwise Python prints its warnings to stderr

MAX_PAGES = 100
"""The maximum number of pages that are read from a server's list."""

STDERR_LINES = 5
"""The number of a command's last stderr lines that are kept for an error."""

LOGIN_SECONDS = 300.0
"""Seconds that a person has to log in."""

RELIST_SECONDS = 5.0
"""The maximum number of seconds that a call waits at its end for a changed list of tools."""


class ServerGone(CallboardError):
    """The server has ended or has closed the connection."""


class Connection:
    def __init__(
        self,
        name: str,
        settings: McpServerSettings | None,
        callbacks: Callbacks,
        *,
        server: object = None,
        auth: Any = None,
    ) -> None:
        self.name = name
        self.client: Client | None = None
        """The library's client, while the connection is up."""
        self.tools: tuple[types.Tool, ...] = ()
        """The server's tools."""
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        """The last lines of a command's stderr."""
        self.status: int | None = None
        """The status of the last HTTP reply that was an error."""
        self._settings = settings
        self._callbacks = callbacks
        self._server = server
        self._auth = auth
        self._calls: list[CallInProgress] = []
        # The time limit while connecting. It is extended if a person may have to log in.
        self._limit: asyncio.Timeout | None = None
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._gone = False
        self._changed = False

    @property
    def is_up(self) -> bool:
        return self.client is not None and not self._gone

    async def live(self, up: Callable[[], object], changed: Callable[[], object]) -> None:
        """Connect, and stay connected until cancelled."""
        try:
            async with AsyncExitStack() as stack:
                client = await self._connected(stack)
                self.client = client
                self.stderr.clear()  # its output at the start doesn't explain a later end
                up()
                async with anyio.create_task_group() as group:
                    group.start_soon(self._listen, client)
                    await self._follow(client, changed)
        finally:
            self.client = None
        raise ServerGone("the server has stopped" if self._settings is not None else "the connection has closed")

    async def _connected(self, stack: AsyncExitStack) -> Client:
        seconds = self._settings.connect_timeout if self._settings is not None else None
        try:
            async with asyncio.timeout(seconds) as limit:
                if hasattr(self._auth, "on_login"):
                    self._limit = limit
                    self._auth.on_login = self._give_time_to_log_in
                try:
                    client = await self._enter(stack, "auto")
                except Exception as error:
                    # The library first requests the protocol version, but some servers end if the first message is
                    # not `initialize`.
                    why = unwrapped(error)
                    closed = isinstance(why, MCPError) and why.code == CONNECTION_CLOSED
                    if not closed or self._settings is None or self._settings.url is not None:
                        raise
                    self._gone = False
                    client = await self._enter(stack, "legacy")
                self.tools = tuple(await all_pages(client.list_tools, "tools"))
                return client
        except TimeoutError:
            raise CallboardError(f"no answer within {seconds:g} s") from None
        finally:
            self._limit = None

    def _give_time_to_log_in(self) -> None:
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time() + LOGIN_SECONDS)

    async def _enter(self, stack: AsyncExitStack, mode: str) -> Client:
        calls = self._callbacks
        client = Client(
            self._target(),  # type: ignore[arg-type]
            client_info=types.Implementation(name="callboard", version=installed_version()),
            mode=mode,
            cache=None,
            sampling_callback=calls.sampling,
            sampling_capabilities=types.SamplingCapability(tools=types.SamplingToolsCapability()),
            elicitation_callback=calls.elicitation,
            list_roots_callback=calls.roots,
            logging_callback=calls.log,
            log_level=calls.log_level,
            message_handler=self._on_message,
        )
        entered = await stack.enter_async_context(client)
        if calls.log_level is not None and entered.server_capabilities.logging is not None and _is_old(entered):
            level = types.SetLevelRequest(params=types.SetLevelRequestParams(level=calls.log_level))
            with contextlib.suppress(MCPError):
                await entered.session.send_request(level, types.EmptyResult)
        return entered

    def _target(self) -> object:
        if self._settings is None:
            return self._server
        return self._watched(_transport(self._settings, self._auth, self.stderr, self._failed_with))

    @asynccontextmanager
    async def _watched(self, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        async with transport as (reads, writes):
            yield _WatchedStream(reads, self), writes

    def _failed_with(self, status: int) -> None:
        self.status = status

    # --- While it is up ---

    async def _follow(self, client: Client, changed: Callable[[], object]) -> None:
        """Read the list of tools again after each change. Returns when the server has ended."""
        while not self._gone:
            await self._wake.wait()
            self._wake.clear()
            if self._changed and not self._gone:
                self._changed = False
                try:
                    self.tools = tuple(await all_pages(client.list_tools, "tools"))
                except MCPError as error:
                    if self.is_lost(error):
                        return
                    _log.warning("mcp_tools_not_listed", server=self.name, error=error.message)
                else:
                    changed()
            if not self._changed:
                self._settled.set()

    async def settle(self) -> None:
        """Wait until the list of tools was read again after a known change, for a few seconds at most."""
        if not self._settled.is_set():
            with anyio.move_on_after(RELIST_SECONDS):
                await self._settled.wait()

    async def _on_message(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.tools_changed()

    async def _listen(self, client: Client) -> None:
        """Listen for changes from a server with a protocol version that has subscriptions."""
        offers = client.server_capabilities.tools
        if _is_old(client) or offers is None or not offers.list_changed:
            return  # an older server sends notifications without a subscription
        pause = 0.5
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    pause = 0.5
                    self.tools_changed()  # the list may have changed before the subscription
                    async for _ in events:
                        self.tools_changed()
            except (SubscriptionLost, TimeoutError):
                pass
            except MCPError as error:
                if self.is_lost(error) or error.code == METHOD_NOT_FOUND:
                    return
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)

    async def roots_changed(self) -> None:
        """Notify the server that the roots have changed. Newer servers are not notified; they request the roots
        when needed.
        """
        if self.client is not None and _is_old(self.client):
            with contextlib.suppress(MCPError):
                await self.client.session.send_notification(types.RootsListChangedNotification())

    def tools_changed(self) -> None:
        self._changed = True
        self._settled.clear()
        self._wake.set()

    def end(self) -> None:
        """End this connection, because the server has ended."""
        self._gone = True
        self._settled.set()
        self._wake.set()

    def is_lost(self, error: MCPError) -> bool:
        """Whether an error means that the server has ended. If so, this connection ends, too."""
        lost = error.code == CONNECTION_CLOSED or was_refused(error)
        if lost:
            self.end()
        return lost

    # --- Calls ---

    @contextmanager
    def in_progress(self, context: ToolContext | None) -> Iterator[None]:
        """Record a tool call in progress, so that the server's requests are assigned to it."""
        call = CallInProgress(context)
        call.variables.run(current_call.set, call)
        token = current_call.set(call)
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.remove(call)
            current_call.reset(token)

    def context_of_request(self) -> contextvars.Context | None:
        """The context for handling a server's message, if the transport provides none.

        The protocol does not name the call to which a request belongs. If all calls in progress belong to one
        turn, the latest call is used. Otherwise no call is used, so that no cost counts for another turn.
        """
        if not self._calls:
            return None
        turns = {call.context.turn_id if call.context is not None else None for call in self._calls}
        return self._calls[-1].variables if len(turns) == 1 else None


class _WatchedStream:
    """The messages of a server. When they end, the connection ends."""

    def __init__(self, inner: Any, connection: Connection) -> None:
        self._inner = inner
        self._connection = connection

    @property
    def last_context(self) -> contextvars.Context | None:
        """The context of the last message, for the library's dispatcher."""
        inner: contextvars.Context | None = getattr(self._inner, "last_context", None)
        if inner is not None and inner.get(current_call) is not None:
            return inner
        return self._connection.context_of_request() or inner

    async def receive(self) -> Any:
        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._connection.end()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()

    def close(self) -> None:
        self._inner.close()

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _WatchedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _is_old(client: Client) -> bool:
    """Whether the server's protocol version has sessions and accepts notifications."""
    return client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


def was_refused(error: MCPError) -> bool:
    """Whether the server had lost the session. If so, it has not run the request."""
    return error.code == INVALID_REQUEST and error.message == "Session terminated"


async def all_pages(method: Callable[..., Awaitable[Any]], field: str) -> list[Any]:
    """All entries of a server's list; empty if the server has no such list."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        try:
            page = await method(cursor=cursor)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND and cursor is None:
                break
            raise
        found += getattr(page, field)
        cursor = page.next_cursor
        if not cursor:
            break
    return found


def unwrapped(error: BaseException) -> BaseException:
    """The single error within nested exception groups."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


# --- Transports ---


def _transport(
    settings: McpServerSettings, auth: Any, stderr: deque[str], failed_with: Callable[[int], None]
) -> AbstractAsyncContextManager[Any]:
    headers = dict(settings.headers) or None
    match settings.transport:
        case "stdio":
            return _stdio(settings, stderr)
        case "sse":
            from mcp.client.sse import sse_client

            assert settings.url is not None
            return sse_client(settings.url, headers, auth=auth)
        case "http":
            return _http(settings, headers, auth, failed_with)


@asynccontextmanager
async def _http(
    settings: McpServerSettings, headers: dict[str, str] | None, auth: Any, failed_with: Callable[[int], None]
) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async def look(response: Any) -> None:
        if response.status_code >= 400:
            failed_with(response.status_code)

    assert settings.url is not None
    async with create_mcp_http_client(headers, auth=auth) as http:
        http.event_hooks["response"] = [*http.event_hooks["response"], look]
        async with streamable_http_client(settings.url, http_client=http) as streams:
            yield streams


@asynccontextmanager
async def _stdio(settings: McpServerSettings, stderr: deque[str]) -> AsyncIterator[Any]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    assert settings.command is not None
    parameters = StdioServerParameters(
        command=_expanded(settings.command),
        args=list(settings.args),
        env=dict(settings.env) or None,
        cwd=None if settings.cwd is None else _expanded(settings.cwd),
    )
    async with _read_lines(stderr) as pipe, stdio_client(parameters, errlog=pipe) as streams:
        yield streams


def _expanded(path: str) -> str:
    """A path with `~` replaced by the home folder."""
    return os.path.expanduser(path)


class _Lines(asyncio.Protocol):
    """Stores the last lines from a pipe."""

    def __init__(self, lines: deque[str]) -> None:
        self._lines = lines
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data)[-65536:].split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._lines.append(text)
                _log.debug("mcp_server_stderr", line=text)


@asynccontextmanager
async def _read_lines(lines: deque[str]) -> AsyncIterator[Any]:
    """The writing end of a pipe for a command's stderr. The last lines are stored, and the host's stderr gets
    nothing.
    """
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as writer:
        reader = os.fdopen(reads, "rb", 0)  # the transport closes this file
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _Lines(lines), reader)
        try:
            yield writer
        finally:
            writer.close()
            await asyncio.sleep(0)  # let the event loop read the data in the pipe
            transport.close()


def installed_version() -> str:
    try:
        return version("callboard")
    except PackageNotFoundError:  # a checkout that isn't installed
        return "0"

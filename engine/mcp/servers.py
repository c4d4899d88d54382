"""MCP servers of a host: one server's tools while a context is open, or several servers under supervision.

Nothing here imports the client library before a server is opened.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

import anyio
import msgspec

from callboard.adapters import Message
from callboard.bus import ActorRef, Bus, ChildSpec, RestartPolicy, Supervisor
from callboard.bus.actors.actor import WorkActor
from callboard.bus.errors import CallboardError, ConfigurationError
from callboard.bus.files import write_private
from callboard.bus.log import Log, takes_old_names
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ResultPart

from ..tools.collect import ToolSource
from ..tools.context import NeedsApproval, ResultContent, ToolContext, ToolError
from ..tools.handler import Tool
from .hooks import Elicit, McpPrompt, McpResource, OnLog, Sample
from .oauth import McpOAuth
from .settings import Given, McpServerSettings, settings_of

if TYPE_CHECKING:
    from mcp_types import Tool as ServerTool

    from ..engine import Engine
    from .connection import Connection
    from .requests import Callbacks

T = TypeVar("T")

_log = Log("engine.mcp")

RESTARTS = RestartPolicy(max_failures=8, healthy_after=30.0, backoff_base=0.5, backoff_cap=30.0)
"""How servers are restarted: a server that is down for about half a minute comes back by itself."""

ACTOR = "mcp "
"""How the name of a server's actor begins in the supervision tree."""

WAIT_SECONDS = 10.0
"""Seconds for which a call waits for a server that is being restarted."""

KEPT_RESULTS = 64
"""The number of whole results that are kept in memory, for results that the model received cut."""

State: TypeAlias = Literal["starting", "up", "restarting", "failed", "closed"]
"""``starting``: the first start is in progress. ``up``: it serves. ``restarting``: it has ended and is started
again. ``failed``: it has failed too many times. ``closed``: its context was left."""


class McpTool(Tool):
    """A tool of an MCP server."""

    original_name: str
    """The server's own name of the tool."""
    server: str
    """The server's name."""


def require_library() -> None:
    try:
        import mcp.client  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"MCP servers need the official client library ({error}): pip install 'callboard[mcp]'"
        ) from error


class McpServer:
    """One MCP server, over its restarts. `mcp_servers` makes it.

    Its methods wait a few seconds for a server that is being restarted. They may be used on any event loop.
    """

    def __init__(
        self,
        name: str,
        settings: McpServerSettings | None,
        callbacks: Callbacks,
        *,
        server: object = None,
        auth: object = None,
        timeout: float | None = None,
        needs_approval: NeedsApproval | None = None,
        keep: Callable[[str, ResultContent], str] | None = None,
    ) -> None:
        self.name = name
        """The server's name in the settings."""
        self.settings = settings
        """The server's settings."""
        self.error: str | None = None
        """The reason of the last failure; None if there was none."""
        self.offered: tuple[ServerTool, ...] = ()
        """The tools that are offered, as the server describes them."""
        self.version = 0
        """Counts the changes of `offered` and of the state."""
        self.ref: ActorRef | None = None
        self.first_try = asyncio.Event()
        """Set when the server is up for the first time, or has failed."""
        self._callbacks = callbacks
        self._server = server
        self._auth = auth
        self._timeout = timeout
        self._needs_approval = needs_approval
        self._keep = keep
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._was_up = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"McpServer({self.name!r}, {self.state})"

    @property
    def state(self) -> State:
        """Whether the server serves."""
        if self._closed:
            return "closed"
        if self._connection is not None and self._connection.is_up:
            return "up"
        if self.ref is None and self.error is not None:  # without a supervisor
            return "failed"
        if self.ref is not None and not self.ref.coming_up and not self.ref.running:
            return "failed"
        return "restarting" if self._was_up or self.error is not None else "starting"

    # --- What it offers ---

    async def list_resources(self) -> tuple[McpResource, ...]:
        """The server's resources.

        Raises:
            CallboardError: The server is down, or answers with an error.
        """
        from .values import resource_of

        return tuple(resource_of(each) for each in await self._all("list_resources", "resources"))

    async def list_resource_templates(self) -> tuple[McpResource, ...]:
        """The server's templates of resources. Raises what `list_resources` raises."""
        from .values import template_of

        return tuple(
            template_of(each) for each in await self._all("list_resource_templates", "resource_templates")
        )

    async def read_resource(self, uri: str) -> tuple[ResultPart, ...]:
        """The content of a resource, as blocks for `Session.send`. Raises what `list_resources` raises."""
        from .values import resource_part

        read = await self._asked(lambda client: client.read_resource(uri))
        return tuple(resource_part(each) for each in read.contents)

    async def list_prompts(self) -> tuple[McpPrompt, ...]:
        """The server's prompts. Raises what `list_resources` raises."""
        from .values import prompt_of

        return tuple(prompt_of(each) for each in await self._all("list_prompts", "prompts"))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> tuple[Message, ...]:
        """The messages of a prompt with these arguments. Raises what `list_resources` raises."""
        from .values import message_of_prompt

        prompt = await self._asked(lambda client: client.get_prompt(name, dict(arguments or {})))
        return tuple(message_of_prompt(each) for each in prompt.messages)

    async def instructions(self) -> str | None:
        """The server's text about its use, for a system prompt. Raises what `list_resources` raises."""

        async def read(client: Any) -> str | None:
            text: str | None = client.instructions
            return text

        return await self._asked(read)

    async def _all(self, method: str, field: str) -> list[Any]:
        from .connection import all_pages

        return await self._asked(lambda client: all_pages(getattr(client, method), field))

    async def _asked(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        from mcp import MCPError

        async def run() -> T:
            connection = await self._connected()
            try:
                async with asyncio.timeout(self._timeout or 60.0):
                    return await ask(connection.client)
            except MCPError as error:
                connection.is_lost(error)
                raise CallboardError(f"the MCP server {self.name} returned an error: {error.message}") from error
            except TimeoutError:
                raise CallboardError(f"the MCP server {self.name} did not answer in time") from None

        try:
            return await self._at_home(run)
        except ToolError as error:
            raise CallboardError(str(error)) from None

    # --- Its life ---

    async def live(self) -> None:
        """One life of the connection. It ends with an exception, or is cancelled."""
        from .connection import Connection, unwrapped

        connection = Connection(self.name, self.settings, self._callbacks, server=self._server, auth=self._auth)

        def up() -> None:
            self._connection = connection
            self._was_up = True
            self._up.set()
            self.first_try.set()
            self.version += 1
            self._changed()

        try:
            await connection.live(up, self._changed)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.error = self._words(unwrapped(error), connection)
            if self._closed:
                return
            if self.ref is not None or self._was_up:  # else the caller gets the error
                _log.warning("mcp_server_failed", server=self.name, error=self.error)
            raise CallboardError(self.error) from error
        finally:
            self._connection = None
            if self.ref is None:  # nothing restarts it, so no call needs to wait
                self._up.set()
            else:
                self._up.clear()
            self.first_try.set()
            self.version += 1

    def _changed(self) -> None:
        assert self._connection is not None
        offers = self.settings.offers if self.settings is not None else lambda _: True
        offered = tuple(tool for tool in self._connection.tools if offers(tool.name))
        if offered != self.offered:
            self.offered = offered
            self.version += 1

    def close(self) -> None:
        self._closed = True
        self.version += 1

    async def roots_changed(self) -> None:
        if self.state == "up" and self._connection is not None and self._connection.client is not None:
            await self._connection.roots_changed()

    def _words(self, error: BaseException, connection: Connection) -> str:
        """The text of an error, without secrets, with the last words of the command."""
        text = getattr(error, "message", None) or str(error)
        if connection.status is not None:
            text += f" (HTTP {connection.status})"
        if connection.stderr:
            text += f"; its last words: {' | '.join(connection.stderr)}"
        for secret in self.settings.secrets if self.settings is not None else ():
            text = text.replace(secret, "***")
        if isinstance(error, CallboardError):
            return text[:LONGEST_ERROR]
        return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:LONGEST_ERROR]

    # --- Its tools ---

    def tool(self, tool: ServerTool, name: str) -> McpTool:
        """A tool of the server under a name. Raises ValueError if its schema can't be used."""
        from .values import definition_of

        async def execute(arguments: JsonObject, /, context: ToolContext) -> ResultContent:
            return await self._at_home(lambda: self._call(tool.name, arguments, context))

        made = McpTool(
            definition_of(tool, name), execute, timeout=self._timeout, needs_approval=self._needs_approval
        )
        object.__setattr__(made, "original_name", tool.name)
        object.__setattr__(made, "server", self.name)
        return made

    async def _call(self, name: str, arguments: JsonObject, context: ToolContext) -> ResultContent:
        """Call a tool of the server. If the caller is cancelled, the server is notified.

        A call that the server has refused unseen, because it was restarted, is sent once more.
        """
        from mcp import MCPError

        from .connection import was_refused
        from .values import content_of

        again = True
        while True:
            connection = await self._connected()
            assert connection.client is not None
            try:
                with connection.in_progress(context):
                    result = await connection.client.call_tool(
                        name, arguments, progress_callback=partial(_progressed, context)
                    )
            except MCPError as error:
                if not connection.is_lost(error):
                    raise ToolError(f"The MCP server {self.name} returned an error: {error.message}") from error
                self._up.clear()
                if was_refused(error) and again:
                    again = False
                    continue
                raise ToolError(
                    f"The MCP server {self.name} stopped during this call, which may have been carried out "
                    "in part or in full."
                ) from error
            await connection.settle()  # so that the next step has the tools of now
            content = self._cut(content_of(result), context)
            if result.is_error:
                raise ToolError(content or "The tool failed without an error text.")
            return content

    def _cut(self, content: ResultContent, context: ToolContext) -> ResultContent:
        from .values import shortened

        if self.settings is None or self._keep is None:
            return content
        limit = self.settings.max_result_chars
        size = (
            len(content) if isinstance(content, str) else sum(len(getattr(each, "text", "")) for each in content)
        )
        if size <= limit:
            return content
        whole = self._keep(context.tool_call_id, content)
        note = f"(... {{count}} characters are left out here. {whole})"
        return shortened(content, limit, note) or content

    async def _connected(self) -> Connection:
        """The connection, after a restart if need be. Raises ToolError if there is none."""
        if self._connection is None or not self._connection.is_up:
            self._up.clear()
            if self.state in ("starting", "restarting"):
                with anyio.move_on_after(WAIT_SECONDS):
                    await self._up.wait()
        if self._connection is not None and self._connection.is_up:
            return self._connection
        match self.state:
            case "closed":
                raise ToolError(f"The MCP server {self.name} is closed. Its tools can no longer be used.")
            case "failed":
                raise ToolError(f"The MCP server {self.name} has failed and is not restarted: {self.error}")
            case _:
                raise ToolError(f"The MCP server {self.name} is restarting. Try again later.")

    async def _at_home(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a coroutine that runs on the event loop of the connection."""
        if asyncio.get_running_loop() is self._loop:
            return await work()
        if self._loop.is_closed():
            raise ToolError(f"The MCP server {self.name} is closed. Its tools can no longer be used.")

        async def run() -> T:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))


LONGEST_ERROR = 2000


async def _progressed(context: ToolContext, progress: float, total: float | None, message: str | None) -> None:
    context.progress(message, progress / total if total else None)


# --- One server ---


class McpConnection(AbstractAsyncContextManager[tuple[McpTool, ...]]):
    """A connection to an MCP server, open while it is entered. `mcp_tools` makes it."""

    def __init__(
        self,
        make: Callable[[], McpServer],
        named: str,
        *,
        prefix: str,
        include: Callable[[str], bool] | None,
        connect_seconds: float,
    ) -> None:
        self._make = make
        self._named = named
        self._prefix = prefix
        self._include = include
        self._seconds = connect_seconds
        self._task: asyncio.Task[None] | None = None
        self._server: McpServer | None = None

    async def __aenter__(self) -> tuple[McpTool, ...]:
        """The server's tools."""
        if self._task is not None:
            raise CallboardError("this MCP server has already been opened. Call mcp_tools(...) again")
        server = self._server = self._make()
        task = self._task = asyncio.create_task(server.live(), name=f"mcp {self._named}")
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        opened = False
        try:
            with anyio.move_on_after(self._seconds):
                await server.first_try.wait()
            opened = server.state == "up"
        finally:
            if not opened:
                await self._end()
        if not opened:
            why = server.error or f"no answer within {self._seconds:g} s"
            raise CallboardError(f"the MCP server {self._named} can't be reached: {why}")
        wanted = [tool for tool in server.offered if self._include is None or self._include(tool.name)]
        return tuple(_made([(server, tool, self._prefix) for tool in wanted]))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._task is None or self._server is None:
            return
        self._server.close()
        with anyio.CancelScope(shield=True):  # bounded by the library's own limits
            self._task.cancel()
            await asyncio.wait((self._task,))


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
    the server dies later, calls of its tools fail, and the model sees the error. `mcp_servers` restarts its
    servers and follows their lists.

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
    require_library()
    settings: McpServerSettings | None = None
    match server:
        case str() if server.startswith(("http://", "https://")):
            settings = McpServerSettings(url=server, headers=headers or {}, connect_timeout=connect_seconds)
        case str():
            raise ConfigurationError(
                "mcp_tools needs a URL (http:// or https://), or a command as a list of its parts: "
                f"[{server.partition(' ')[0]!r}, ...]"
            )
        case list() | tuple() if server and all(isinstance(part, str) for part in server):
            settings = McpServerSettings(
                command=server[0],
                args=tuple(server[1:]),
                env=env or {},
                cwd=str(cwd) if cwd else None,
                connect_timeout=connect_seconds,
            )
        case _:
            pass
    named = type(server).__name__ if settings is None else settings.address

    def make() -> McpServer:
        from .requests import Callbacks

        return McpServer(
            named,
            settings,
            Callbacks(named),
            server=server,
            timeout=timeout,
            needs_approval=needs_approval,
        )

    return McpConnection(make, named, prefix=prefix, include=include, connect_seconds=connect_seconds)


def _made(named: Sequence[tuple[McpServer, ServerTool, str]]) -> Iterator[McpTool]:
    """The tools of servers, each with a prefix, under legal and different names."""
    from .values import legal_names

    names = legal_names(prefix + tool.name for _, tool, prefix in named)
    seen: set[str] = set()
    for server, tool, prefix in named:
        name = names[prefix + tool.name]
        if name in seen:
            _log.warning("mcp_tool_left_out", server=server.name, tool=tool.name, error="it is listed twice")
            continue
        seen.add(name)
        if name != prefix + tool.name:
            _log.warning("mcp_tool_renamed", server=server.name, original=tool.name, name=name)
        try:
            yield server.tool(tool, name)
        except ValueError as error:
            _log.warning("mcp_tool_left_out", server=server.name, tool=tool.name, error=str(error))


# --- Several servers ---


class McpServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one server."""

    name: str
    """The server's name."""
    address: str
    """The command or the URL, without secrets."""
    state: State
    """``starting``, ``up``, ``restarting``, ``failed`` or ``closed``."""
    tools: tuple[str, ...]
    """The names of its tools, as the model sees them."""
    error: str | None = None
    """The reason of the last failure; None if there was none."""


class McpServers(ToolSource):
    """Several MCP servers, open while the object is entered. `mcp_servers` makes it.

    As a sequence it is the tools of now. A session that has it among its tools follows changes between steps.
    """

    def __init__(
        self,
        settings: Mapping[str, McpServerSettings],
        *,
        engine: Engine | None,
        auth: Mapping[str, object],
        hooks: Mapping[str, Any],
        roots: Sequence[str | Path] | None,
        prefix: Literal["clash", "always"],
        restarts: RestartPolicy,
        results_folder: Path | None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._auth = auth
        self._hooks = hooks
        self._prefix = prefix
        self._restarts = restarts
        self._folder = results_folder
        self._roots = None if roots is None else _as_uris(roots)
        self._servers: dict[str, McpServer] = {}
        self._results: OrderedDict[str, ResultContent] = OrderedDict()
        self._tools: tuple[McpTool, ...] = ()
        self._seen: tuple[object, ...] | None = None
        self._root: Supervisor | None = None
        self._supervisor: Supervisor | None = None
        self._own: asyncio.Task[None] | None = None
        self._entered = False

    # --- Open and close ---

    async def __aenter__(self) -> Self:
        """Start the servers. It returns when each is up or has failed once; a failed one is tried again."""
        if self._entered:
            raise CallboardError("these MCP servers have already been opened. Call mcp_servers(...) again")
        self._entered = True
        try:
            await self._supervise()
            await asyncio.gather(*(self._start(name, settings) for name, settings in self._settings.items()))
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        """The same for a program without an event loop, with `generate_sync` and the like."""
        from ..functions.sync import sync_host

        host = sync_host()
        host.run(self.__aenter__, name="with mcp_servers()", instead="say `async with mcp_servers()`")
        host.close_at_end(self)
        return self

    def __exit__(self, *_: object) -> None:
        from ..functions.sync import sync_host

        sync_host().run(self.aclose)

    async def aclose(self) -> None:
        """End all servers. A second call does nothing."""
        for server in self._servers.values():
            server.close()
        root, supervisor = self._root, self._supervisor
        self._root = self._supervisor = None
        with anyio.CancelScope(shield=True):
            if root is not None and self._own is not None:
                await root.stop()
                await asyncio.wait((self._own,))
            elif root is not None and supervisor is not None:
                await root.remove_child(supervisor.name)

    async def _supervise(self) -> None:
        """Have a supervisor: below the engine's own, or alone if there is no engine."""
        if self._engine is not None:
            life = await self._engine._host.living()
            root = self._root = life.supervisor
            assert root is not None
            taken = {child.name for child in root.statistics().children}
            name = next(name for name in _names("mcp servers") if name not in taken)
            self._supervisor = await root.start_supervisor(name, policy=self._restarts)
            return
        root = self._root = self._supervisor = Supervisor("mcp servers", bus=Bus(), policy=self._restarts)
        up = asyncio.Event()

        async def run() -> None:
            async with anyio.create_task_group() as group:
                await group.start(root.run)
                up.set()

        self._own = asyncio.create_task(run(), name="mcp servers")
        await up.wait()

    async def _start(self, name: str, settings: McpServerSettings) -> None:
        from .requests import Callbacks

        assert self._supervisor is not None
        callbacks = Callbacks(
            name, roots=None if self._roots is None else lambda: self._roots or (), **self._hooks
        )
        auth = self._auth.get(name)
        if isinstance(auth, McpOAuth):
            auth = auth.for_server(settings.url or "")
        server = self._servers[name] = McpServer(
            name,
            settings,
            callbacks,
            auth=auth,
            timeout=settings.timeout,
            needs_approval=settings.needs_approval,
            keep=self._kept,
        )
        spec = ChildSpec(ACTOR + name, lambda: WorkActor(server.live, ACTOR + name), on_limit="stop")
        server.ref = await self._supervisor.start_child(spec)
        await server.first_try.wait()

    async def restart(self, name: str) -> None:
        """Start a server that has failed again, with no failures counted.

        Raises:
            KeyError: There is no such server.
        """
        server = self._servers[name]
        if self._supervisor is not None and server.state == "failed":
            server.first_try.clear()
            await self._supervisor.restart_child(ACTOR + name)
            await server.first_try.wait()

    # --- The servers ---

    def server(self, name: str) -> McpServer:
        """A server, for its resources and prompts.

        Raises:
            KeyError: There is no such server, or the servers are not open.
        """
        return self._servers[name]

    def status(self) -> tuple[McpServerStatus, ...]:
        """A snapshot of each server."""
        names: dict[str, list[str]] = {}
        for tool in self.tools:
            names.setdefault(tool.server, []).append(tool.name)
        return tuple(
            McpServerStatus(
                name=name,
                address=server.settings.address if server.settings is not None else "",
                state=server.state,
                tools=tuple(names.get(name, ())),
                error=server.error,
            )
            for name, server in self._servers.items()
        )

    @property
    def roots(self) -> tuple[str, ...]:
        """The roots that servers see, as URIs."""
        return self._roots or ()

    async def set_roots(self, roots: Sequence[str | Path]) -> None:
        """Change the roots, and notify the servers.

        Raises:
            CallboardError: The servers were opened without roots, so they do not ask for any.
        ConfigurationError: A root is a URI of another kind than ``file:``.
        """
        if self._roots is None:
            raise CallboardError("pass roots= (an empty list will do) to mcp_servers to change the roots later")
        self._roots = _as_uris(roots)
        await asyncio.gather(*(server.roots_changed() for server in self._servers.values()))

    # --- The tools ---

    @property
    def tools(self) -> tuple[McpTool, ...]:
        """The tools of now. The tuple stays the same object until they change."""
        seen = tuple((server.version, server.state == "failed") for server in self._servers.values())
        if seen != self._seen:
            self._tools = self._named()
            self._seen = seen
        return self._tools

    def _named(self) -> tuple[McpTool, ...]:
        serving = [server for server in self._servers.values() if server.state not in ("failed", "closed")]
        owners = Counter(name for server in serving for name in {tool.name for tool in server.offered})
        return tuple(
            _made(
                [
                    (server, tool, f"{server.name}_" if self._prefix == "always" or owners[tool.name] > 1 else "")
                    for server in serving
                    for tool in server.offered
                ]
            )
        )

    def whole_result(self, tool_call_id: str) -> ResultContent | None:
        """The whole of a result that went to the model cut; None if it is not kept (any more)."""
        return self._results.get(tool_call_id)

    def _kept(self, tool_call_id: str, content: ResultContent) -> str:
        """Keep a whole result. Returns a sentence for the model with its place."""
        self._results[tool_call_id] = content
        while len(self._results) > KEPT_RESULTS:
            self._results.popitem(last=False)
        if self._folder is None:
            return "Ask for less, such as a page or a filter."
        texts = [content] if isinstance(content, str) else [getattr(part, "text", "") for part in content]
        path = self._folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', tool_call_id)[:80]}.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_private(path, "".join(texts).encode("utf-8", "replace"))
        except OSError as error:
            _log.warning("mcp_result_not_written", path=str(path), error=error.strerror)
            return "Ask for less, such as a page or a filter."
        return f"The whole is in the file {path}."


def _names(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name} {number}"


def _as_uris(roots: Sequence[str | Path]) -> tuple[str, ...]:
    found = tuple(
        str(root) if "://" in str(root) else Path(root).expanduser().resolve().as_uri() for root in roots
    )
    if wrong := [uri for uri in found if not uri.startswith("file://")]:
        raise ConfigurationError(f"a root of MCP servers is a folder or a file: URI, not {wrong[0]!r}")
    return found


def _may_want_login(server: McpServerSettings) -> bool:
    return server.url is not None and "authorization" not in {name.lower() for name in server.headers}


def mcp_servers(
    servers: Given,
    *,
    engine: Engine | None = None,
    elicit: Elicit | None = None,
    sampling: str | Sample | None = None,
    roots: Sequence[str | Path] | None = None,
    auth: Mapping[str, object] | McpOAuth | None = None,
    on_log: OnLog | None = None,
    log_level: str | None = None,
    prefix: Literal["clash", "always"] = "clash",
    restarts: RestartPolicy = RESTARTS,
    results_folder: str | Path | None = None,
) -> McpServers:
    """The tools of several MCP servers: `async with mcp_servers("mcp.json") as servers: …`, then `tools=servers`.

    A server that ends is started again with backoff. Its calls in progress become error results for the model. A
    server that fails too many times in a row stays down, and the others go on. A session follows changes of the
    tools between the steps of a turn. A program without an event loop says `with mcp_servers(...)`.

    Args:
        servers: A file in the form that hosts share (``{"mcpServers": {...}}``), its content, or
            `McpServerSettings` by name. In a file, ``${VAR}`` and ``${VAR:-default}`` are replaced.
        engine: The engine whose supervision tree the servers are part of. None has a supervisor of their own.
        elicit: A function that asks the user what a server wants to know.
        sampling: The model that answers servers, or a function that decides about each request.
        roots: The folders that servers may work on. `McpServers.set_roots` changes them.
        auth: The login at HTTP servers: a `McpOAuth` for all, or by the servers' names a `McpOAuth` or another
            authentication of the client library. A server that wants no login is not affected.
        on_log: A function that gets the servers' log messages. They go to the log ``callboard.engine.mcp``, too.
        log_level: The lowest level of log messages that servers are asked to send, such as ``info``.
        prefix: ``clash``: a tool name that several servers have gets its server's name in front. ``always``: each
            name does.
        restarts: How servers are restarted.
        results_folder: A folder for the whole of results that are too long for the model. The model gets the path.

    Raises:
        ConfigurationError: The client library is missing, or the settings are wrong.
    """
    require_library()
    settings = settings_of(servers)
    if isinstance(auth, McpOAuth):
        auth = {name: auth for name, server in settings.items() if _may_want_login(server)}
    if unknown := [name for name in auth or {} if name not in settings]:
        raise ConfigurationError(f"auth names {unknown[0]!r}, which is no MCP server of these settings")
    if isinstance(sampling, str):
        from .requests import sampled_by

        sampling = sampled_by(sampling, engine)
    return McpServers(
        settings,
        engine=engine,
        auth=auth or {},
        hooks={"elicit": elicit, "sampling": sampling, "on_log": on_log, "log_level": log_level},
        roots=roots,
        prefix=prefix,
        restarts=restarts,
        results_folder=None if results_folder is None else Path(results_folder),
    )

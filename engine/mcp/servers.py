"""The MCP servers of a host: one server while a context is open, or several servers with supervision.

Nothing here imports the client library before a server is opened.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import anyio
import msgspec

from callboard.bus import Bus, ChildSpec, RestartPolicy, Supervisor
from callboard.bus.actor import WorkActor
from callboard.bus.errors import CallboardError, ConfigurationError
from callboard.bus.files import write_private
from callboard.bus.log import Log, takes_old_names

from ..tools.context import NeedsApproval, ResultContent
from ..tools.definitions import ToolSource
from .hooks import Callbacks, Elicit, OnLog, Sample, sampled_by
from .oauth import McpOAuth
from .server import McpServer, McpTool, State, require_library
from .settings import Given, McpServerSettings, settings_of

if TYPE_CHECKING:
    from mcp_types import Tool as ServerTool

    from ..engine import Engine

T = TypeVar("T")

_log = Log("engine.mcp")

RESTARTS = RestartPolicy(max_failures=8, healthy_after=30.0, backoff_base=0.5, backoff_cap=30.0)
"""The default restart policy. It keeps trying for about half a minute."""

ACTOR = "mcp "
"""The prefix of the name of a server's actor in the supervision tree."""

KEPT_RESULTS = 64
"""The maximum number of full results kept in memory, if results were shortened for the model."""

# --- One server ---


class McpConnection(AbstractAsyncContextManager[tuple[McpTool, ...]]):
    """A connection to an MCP server, open while its context is entered. `mcp_tools` creates it."""

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
        selected = [tool for tool in server.offered if self._include is None or self._include(tool.name)]
        return tuple(_made([(server, tool, self._prefix) for tool in selected]))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._task is None or self._server is None:
            return
        self._server.close()
        with anyio.CancelScope(shield=True):  # limited by the library's own time limits
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
    """Use the tools of an MCP server while the context is open: `async with mcp_tools(server) as tools: …`.

    The list of tools is read when the context is entered. A name that models don't accept is changed, with a
    warning. `original_name` has the server's name. A tool with an unusable schema is left out, with a warning. If
    the server ends later, calls of its tools fail, and the model gets the error. To restart servers and follow
    changes of their lists, use `mcp_servers`.

    Args:
        server: A URL (streamable HTTP), a command as a list, or an object that the client library's `Client`
            takes, such as a transport. A command starts and ends with the context.
        env: The environment variables of a command, in addition to the few that the library passes on.
        cwd: The folder in which a command runs.
        headers: The headers of requests to a URL.
        prefix: A text before each name, for servers with tools of the same name.
        include: A function that returns whether to include a tool, by the server's own name.
        timeout: Seconds for one call of each tool, as in `Tool`.
        needs_approval: Whether calls of the tools need approval, as in `Tool`.
        connect_seconds: Seconds for the server to answer when the context is entered.

    Raises:
        ConfigurationError: The client library is missing, or `server` has another type.
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
    """The tools of servers, under valid and distinct names."""
    from .values import legal_names

    names = legal_names(prefix + tool.name for _, tool, prefix in named)
    used_names: set[str] = set()
    for server, tool, prefix in named:
        name = names[prefix + tool.name]
        if name in used_names:
            _log.warning("mcp_tool_left_out", server=server.name, tool=tool.name, error="it is listed twice")
            continue
        used_names.add(name)
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
    """The names of the server's tools, as the model sees them."""
    error: str | None = None
    """The reason for the last failure; None if there was none."""


class McpServers(ToolSource):
    """Several MCP servers, open while the context is entered. `mcp_servers` creates it.

    It is a sequence of the current tools. A session with this object among its tools follows its changes
    between steps.
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
        self._states: tuple[object, ...] | None = None
        self._root: Supervisor | None = None
        self._supervisor: Supervisor | None = None
        self._server_task: asyncio.Task[None] | None = None
        self._entered = False
        self._watchers: dict[object, Callable[[], object]] = {}

    # --- Open and close ---

    async def __aenter__(self) -> Self:
        """Start the servers. Returns when each server is up or has failed once. Failed servers are restarted in
        the background.
        """
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
        """Start the servers in a program without an event loop, for `generate_sync` and similar functions."""
        from ..sync import sync_host

        host = sync_host()
        host.run(self.__aenter__, name="with mcp_servers()", instead="say `async with mcp_servers()`")
        host.close_at_end(self)
        return self

    def __exit__(self, *_: object) -> None:
        from ..sync import sync_host

        sync_host().run(self.aclose)

    async def aclose(self) -> None:
        """End all servers. A second call does nothing."""
        for server in self._servers.values():
            server.close()
        root, supervisor = self._root, self._supervisor
        self._root = self._supervisor = None
        with anyio.CancelScope(shield=True):
            if root is not None and self._server_task is not None:
                await root.stop()
                await asyncio.wait((self._server_task,))
            elif root is not None and supervisor is not None:
                await root.remove_child(supervisor.name)

    async def _supervise(self) -> None:
        """Start a supervisor under the engine's supervisor. Without an engine, it is separate."""
        if self._engine is not None:
            life = await self._engine._host.running_life()
            root = self._root = life.supervisor
            assert root is not None
            child_names = {child.name for child in root.statistics().children}
            name = next(name for name in _names("mcp servers") if name not in child_names)
            self._supervisor = await root.start_supervisor(name, policy=self._restarts)
            return
        root = self._root = self._supervisor = Supervisor("mcp servers", bus=Bus(), policy=self._restarts)
        up = asyncio.Event()

        async def run() -> None:
            async with anyio.create_task_group() as group:
                await group.start(root.run)
                up.set()

        self._server_task = asyncio.create_task(run(), name="mcp servers")
        await up.wait()

    async def _start(self, name: str, settings: McpServerSettings) -> None:
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
            keep=self._store_result,
            on_change=self._report_change,
        )
        spec = ChildSpec(ACTOR + name, lambda: WorkActor(server.live, ACTOR + name), on_limit="stop")
        server.ref = await self._supervisor.start_child(spec)
        await server.first_try.wait()

    async def restart(self, name: str) -> None:
        """Restart a failed server and reset its count of failures.

        Raises:
            KeyError: The server does not exist.
        """
        server = self._servers[name]
        if self._supervisor is not None and server.state == "failed":
            server.first_try.clear()
            await self._supervisor.restart_child(ACTOR + name)
            await server.first_try.wait()

    # --- The servers ---

    def server(self, name: str) -> McpServer:
        """One server, for its resources and prompts.

        Raises:
            KeyError: The server does not exist, or the servers are not open.
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
        """The roots for the servers, as URIs."""
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
        """The current tools. The tuple stays the same object until they change."""
        states = tuple((server.version, server.state == "failed") for server in self._servers.values())
        if states != self._states:
            self._tools = self._named()
            self._states = states
        return self._tools

    def watch(self, changed: Callable[[], object]) -> Callable[[], object]:
        """Call a function when the tools may have changed, on the event loop of the servers."""
        key = object()
        self._watchers[key] = changed
        return lambda: self._watchers.pop(key, None)

    def _report_change(self) -> None:
        for changed in list(self._watchers.values()):
            changed()

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
        """The full text of a result that was shortened for the model; None if it is no longer stored, or was not
        shortened.
        """
        return self._results.get(tool_call_id)

    def _store_result(self, tool_call_id: str, content: ResultContent) -> str:
        """Store a full result. Returns a sentence for the model with its location."""
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
    """Use the tools of several MCP servers: `async with mcp_servers("mcp.json") as servers: …`, then
    `tools=servers`.

    A server that ends is restarted with backoff. For its calls in progress, the model gets error results. A server
    that fails too many times in a row is not restarted; the others continue. A session uses the current tools in
    each step of a turn. In a program without an event loop, use `with mcp_servers(...)`.

    Args:
        servers: A file in the common format of MCP hosts (``{"mcpServers": {...}}``), its content, or
            `McpServerSettings` by name. In a file, ``${VAR}`` and ``${VAR:-default}`` are replaced.
        engine: The engine that supervises the servers. With None, they have a separate supervisor.
        elicit: A function that asks the user the questions of a server.
        sampling: The model that answers the servers' sampling requests, or a function that answers each request.
        roots: The folders that servers may work on. `McpServers.set_roots` changes them.
        auth: The login at HTTP servers: a `McpOAuth` for all, or by the servers' names a `McpOAuth` or another
            authentication of the client library. A server that needs no login is not affected.
        on_log: A function that receives the servers' log messages. They are also logged as
            ``callboard.engine.mcp``.
        log_level: The lowest requested level of log messages, such as ``info``.
        prefix: ``clash``: tools with the same name on several servers get the server's name as a prefix.
            ``always``: all tools do.
        restarts: The restart policy.
        results_folder: A folder for the full text of results that are too long for the model. The model gets the
            path.

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

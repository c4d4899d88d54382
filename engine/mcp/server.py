"""An MCP server across its restarts: its state, tools, resources and prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import anyio
import msgspec

from callboard.adapters import Message
from callboard.bus import ActorRef
from callboard.bus.errors import CallboardError, ConfigurationError
from callboard.bus.log import Log
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ResultPart

from ..tools.context import NeedsApproval, ResultContent, ToolContext, ToolError
from ..tools.definitions import Tool
from .hooks import Callbacks
from .settings import McpServerSettings

if TYPE_CHECKING:
    import mcp_types as types
    from mcp_types import Tool as ServerTool

    from .connection import Connection

T = TypeVar("T")

_log = Log("engine.mcp")

LONGEST_ERROR = 2000
"""The maximum number of characters of an error that are stored."""

WAIT_SECONDS = 10.0
"""Seconds that a call waits for a server that is being restarted."""

State: TypeAlias = Literal["starting", "up", "restarting", "failed", "closed"]
"""``starting``: the first start is in progress. ``up``: it serves. ``restarting``: it has ended and is being
restarted. ``failed``: it failed too often. ``closed``: its context was left.
"""


class McpTool(Tool):
    """A tool of an MCP server."""

    original_name: str
    """The server's own name of the tool."""
    server: str
    """The server's name."""


class McpResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that a server offers, or a template of resources."""

    uri: str
    """The URI for `McpServer.read_resource`. A template's URI has parts in braces."""
    name: str
    """The server's name of the resource."""
    title: str | None = None
    """A name for people."""
    description: str | None = None
    """The server's description."""
    media_type: str | None = None
    """The media type, if it is known."""
    size: int | None = None
    """The size in bytes, if it is known."""


class McpPromptArgument(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a prompt. Its value is a text."""

    name: str
    """The argument's name."""
    description: str | None = None
    """The server's description."""
    required: bool = False
    """Whether the prompt needs it."""


class McpPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that a server offers; `McpServer.get_prompt` fills it in."""

    name: str
    """The server's name of the prompt."""
    title: str | None = None
    """A name for people."""
    description: str | None = None
    """The server's description."""
    arguments: tuple[McpPromptArgument, ...] = ()
    """The arguments."""


def require_library() -> None:
    try:
        import mcp.client  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"MCP servers need the official client library ({error}): pip install 'callboard[mcp]'"
        ) from error


class McpServer:
    """An MCP server across its restarts. `mcp_servers` creates it.

    Its methods wait a few seconds for a server that is being restarted. They may be called on any event loop.
    `timeout` is in seconds, for one tool call.
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
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        """The server's name in the settings."""
        self.settings = settings
        """The server's settings."""
        self.error: str | None = None
        """The reason for the last failure; None if there was none."""
        self.offered: tuple[ServerTool, ...] = ()
        """The tools to offer, as the server describes them."""
        self.version = 0
        """The number of changes of `offered` and of the state."""
        self.ref: ActorRef | None = None
        self.first_try = asyncio.Event()
        """Set when the server is up for the first time or has failed."""
        self._callbacks = callbacks
        self._server = server
        self._auth = auth
        self._timeout = timeout
        self._needs_approval = needs_approval
        self._keep = keep
        self._on_change = on_change
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._was_up = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"McpServer({self.name!r}, {self.state})"

    @property
    def state(self) -> State:
        """The state of the server."""
        if self._closed:
            return "closed"
        if self._connection is not None and self._connection.is_up:
            return "up"
        if self.ref is None and self.error is not None:  # it has no supervisor, and has failed
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
        return tuple(_resource_of(each) for each in await self._all("list_resources", "resources"))

    async def list_resource_templates(self) -> tuple[McpResource, ...]:
        """The server's templates of resources. Raises the errors of `list_resources`."""
        return tuple(
            _template_of(each) for each in await self._all("list_resource_templates", "resource_templates")
        )

    async def read_resource(self, uri: str) -> tuple[ResultPart, ...]:
        """The content of a resource, as blocks for `Session.send`. Raises the errors of `list_resources`."""
        from .values import resource_part

        read = await self._ask_client(lambda client: client.read_resource(uri))
        return tuple(resource_part(each) for each in read.contents)

    async def list_prompts(self) -> tuple[McpPrompt, ...]:
        """The server's prompts. Raises the errors of `list_resources`."""
        return tuple(_prompt_of(each) for each in await self._all("list_prompts", "prompts"))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> tuple[Message, ...]:
        """The messages of a prompt with these arguments. Raises the errors of `list_resources`."""
        from .values import message_of_prompt

        prompt = await self._ask_client(lambda client: client.get_prompt(name, dict(arguments or {})))
        return tuple(message_of_prompt(each) for each in prompt.messages)

    async def instructions(self) -> str | None:
        """The server's text about its use, for a system prompt. Raises the errors of `list_resources`."""

        async def read(client: Any) -> str | None:
            text: str | None = client.instructions
            return text

        return await self._ask_client(read)

    async def _all(self, method: str, field: str) -> list[Any]:
        from .connection import all_pages

        return await self._ask_client(lambda client: all_pages(getattr(client, method), field))

    async def _ask_client(self, ask: Callable[[Any], Awaitable[T]]) -> T:
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

    # --- Connection ---

    async def live(self) -> None:
        """Connect, and run until the connection ends. A lost connection raises CallboardError."""
        from .connection import Connection, unwrapped

        connection = Connection(self.name, self.settings, self._callbacks, server=self._server, auth=self._auth)

        def up() -> None:
            self._connection = connection
            self._was_up = True
            self._up.set()
            self.first_try.set()
            self._changed(True)

        try:
            await connection.live(up, self._changed)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.error = self._words(unwrapped(error), connection)
            if self._closed:
                return
            if self.ref is not None or self._was_up:  # otherwise the caller gets the error
                _log.warning("mcp_server_failed", server=self.name, error=self.error)
            raise CallboardError(self.error) from error
        finally:
            self._connection = None
            if self.ref is None:  # nothing restarts the server, so calls need not wait
                self._up.set()
            else:
                self._up.clear()
            self.first_try.set()
            self._next_version()

    def _changed(self, state_changed: bool = False) -> None:
        assert self._connection is not None
        offers = self.settings.offers if self.settings is not None else lambda _: True
        offered = tuple(tool for tool in self._connection.tools if offers(tool.name))
        if state_changed or offered != self.offered:
            self.offered = offered
            self._next_version()

    def close(self) -> None:
        self._closed = True
        self._next_version()

    def _next_version(self) -> None:
        self.version += 1
        self._on_change()

    async def roots_changed(self) -> None:
        if self.state == "up" and self._connection is not None and self._connection.client is not None:
            await self._connection.roots_changed()

    def _words(self, error: BaseException, connection: Connection) -> str:
        """The text of an error, with the command's last stderr lines, without secrets."""
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
        """Make a tool of the server with a name for models. Raises ValueError if its schema can't be used."""
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

        If a restarted server refused a call without running it, the call is sent once more.
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
            await connection.settle()  # so that the next step of the turn has the current tools
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
        full_result_note = self._keep(context.tool_call_id, content)
        note = f"(... {{count}} characters are left out here. {full_result_note})"
        return shortened(content, limit, note) or content

    async def _connected(self) -> Connection:
        """The connection, after a restart if needed. Raises ToolError if there is no connection."""
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
        """Run a coroutine on the event loop of the connection, and return its result."""
        if asyncio.get_running_loop() is self._loop:
            return await work()
        if self._loop.is_closed():
            raise ToolError(f"The MCP server {self.name} is closed. Its tools can no longer be used.")

        async def run() -> T:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))


async def _progressed(context: ToolContext, progress: float, total: float | None, message: str | None) -> None:
    context.progress(message, progress / total if total else None)


def _resource_of(resource: types.Resource) -> McpResource:
    return McpResource(
        uri=str(resource.uri),
        name=resource.name,
        title=resource.title,
        description=resource.description,
        media_type=resource.mime_type,
        size=resource.size,
    )


def _template_of(template: types.ResourceTemplate) -> McpResource:
    return McpResource(
        uri=template.uri_template,
        name=template.name,
        title=template.title,
        description=template.description,
        media_type=template.mime_type,
    )


def _prompt_of(prompt: types.Prompt) -> McpPrompt:
    return McpPrompt(
        name=prompt.name,
        title=prompt.title,
        description=prompt.description,
        arguments=tuple(
            McpPromptArgument(name=each.name, description=each.description, required=bool(each.required))
            for each in prompt.arguments or ()
        ),
    )

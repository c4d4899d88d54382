"""Serves a session or tools to other hosts, as an MCP server.

    tools      each is a tool of the server, with the same checks and time limits as in a turn
    a session  one tool, `ask`, sends a message and returns the reply, see `ask`
    resources, prompts  see `offers`

A server may serve several clients, over stdin and stdout or over streamable HTTP. After a change of its lists, it
sends older clients a notification, and newer clients an event of their subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import anyio

from callboard.adapters import ToolUseBlock
from callboard.bus import SYSTEM_CLOCK, ConfigurationError, ToolFinished, ToolProgress, ToolStarted
from callboard.bus.log import Log

from ..sessions.session import Session
from ..tools.calls import ToolRoundContext
from ..tools.context import Approve
from ..tools.definitions import Tool, ToolLike, as_tools, collected
from ..tools.running import run_tools
from .ask import APPROVAL, NOT_APPROVED, AskedUser, OpenSession, ask_tool, asked_user
from .server import require_library

_log = Log("engine.mcp.serve")

Offered: TypeAlias = Literal["tools", "resources", "prompts"]
"""The kinds of lists that a server offers."""

MOST_VALUES = 100
"""The protocol's maximum number of argument values in one reply."""


class McpService:
    """An MCP server of this program. `mcp_service` creates it. `timeout` is in seconds, for one tool call."""

    def __init__(
        self,
        tools: Sequence[ToolLike],
        *,
        resources: Mapping[str, object] | None,
        prompts: Sequence[ToolLike] | None,
        name: str,
        instructions: str | None,
        approve: Approve | None,
        timeout: float,
    ) -> None:
        from mcp.server.subscriptions import InMemorySubscriptionBus

        from .offers import Prompts, Resources

        self._tools = tools
        self._resources = None if resources is None else Resources(resources)
        self._prompts = None if prompts is None else Prompts(prompts)
        self._approve = approve
        self._timeout = timeout
        self._bus = InMemorySubscriptionBus()
        self._clients: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """The connections of older clients, with the URIs to which they subscribed."""
        self._signature = self._offered()
        self._server = self._made(name, instructions)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The current tools."""
        return as_tools(self._tools)

    async def serve_stdio(self) -> None:
        """Serve one client over stdin and stdout until it disconnects. Other output of the process is written to
        stderr.
        """
        from mcp.server.stdio import stdio_server

        with _own_stdout() as out:
            async with stdio_server(stdout=anyio.wrap_file(out)) as (reads, writes):
                await self._server.run(reads, writes, self._server.create_initialization_options())

    def http_app(self, *, hosts: Sequence[str] = (), token: str | None = None) -> Any:
        """An ASGI application that serves streamable HTTP at ``/mcp``. Its lifespan must run.

        Args:
            hosts: The host names that clients use, such as ``mcp.example.com``. Those of this machine are always
                allowed.
            token: The token that clients must send as ``Authorization: Bearer``; None accepts all requests.
        """
        from mcp.server.transport_security import TransportSecuritySettings

        names = ["127.0.0.1", "localhost", "[::1]", *hosts]
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=[*names, *(f"{name}:*" for name in names)],
            allowed_origins=[
                f"{scheme}://{name}{port}" for scheme in _SCHEMES for name in names for port in _PORTS
            ],
        )
        app = self._server.streamable_http_app(transport_security=security)
        app.add_middleware(_Gate, token=token)
        return app

    # --- Changes ---

    async def announce(self, kind: Offered, uri: str | None = None) -> None:
        """Notify the clients of a change.

        Changes of the lists are detected after each tool call, and immediately if a tool source reports them. Call
        this method for other changes, or if the content of a resource has changed.

        Args:
            kind: The list that has changed: ``tools``, ``resources`` or ``prompts``.
            uri: The resource whose content has changed, instead of the list. Only clients that have subscribed to
                it are notified.
        """
        from mcp.server import subscriptions as events

        if uri is not None:
            for client in [client for client, uris in self._clients.items() if uri in uris]:
                await client.send_resource_updated(uri)
            await self._bus.publish(events.ResourceUpdated(uri))
            return
        event: events.ServerEvent
        match kind:
            case "tools":
                method, event = "send_tool_list_changed", events.ToolsListChanged()
            case "resources":
                method, event = "send_resource_list_changed", events.ResourcesListChanged()
            case "prompts":
                method, event = "send_prompt_list_changed", events.PromptsListChanged()
        for client in list(self._clients):
            await getattr(client, method)()
        await self._bus.publish(event)

    def _offered(self) -> dict[Offered, object]:
        found: dict[Offered, object] = {"tools": [each.definition for each in self.tools]}
        if self._resources is not None:
            found["resources"] = self._resources.uris
        if self._prompts is not None:
            found["prompts"] = [each.definition for each in self._prompts.tools]
        return found

    async def _look(self) -> None:
        before, self._signature = self._signature, self._offered()
        for kind, now in self._signature.items():
            if now != before[kind]:
                await self.announce(kind)

    @contextlib.asynccontextmanager
    async def _following(self, _: object) -> AsyncIterator[dict[str, Any]]:
        """Notify clients about changes that tool sources report."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def report() -> None:  # called on the event loop of the source
            loop.call_soon_threadsafe(changed.set)

        async def follow() -> None:
            while True:
                await changed.wait()
                changed.clear()
                await self._look()

        async with contextlib.AsyncExitStack() as stack:
            for source in collected(self._tools)[1]:
                stack.callback(source.watch(report))
            stack.callback(asyncio.create_task(follow()).cancel)
            yield {}

    # --- What clients see ---

    def _made(self, name: str, instructions: str | None) -> Any:
        import mcp_types as types
        from mcp import MCPError
        from mcp.server.lowlevel import NotificationOptions, Server
        from mcp.server.subscriptions import ListenHandler
        from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY

        from .connection import installed_version
        from .values import blocks_for, tool_of

        class Announcing(Server[dict[str, Any]]):
            """A server that also notifies older clients about changes."""

            def get_capabilities(self, *_: Any, **named: Any) -> types.ServerCapabilities:
                return super().get_capabilities(NotificationOptions(True, True, True), **named)

        async def connected(context: Any, _: Any) -> None:
            self._clients.setdefault(context.session._connection, set())

        async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=[tool_of(each.definition) for each in self.tools])

        async def call_tool(
            context: Any, params: types.CallToolRequestParams
        ) -> types.CallToolResult | types.InputRequiredResult:
            if params.name not in {each.name for each in self.tools}:
                raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")
            call = ToolUseBlock(f"mcp_{context.request_id}", params.name, params.arguments or {})
            user = AskedUser(context.session, params, self._approve)
            asked_user.set(user)
            with _Progress(context.session) as progress:
                shared = ToolRoundContext(
                    clock=SYSTEM_CLOCK,
                    tell=progress.tell,
                    timeout_seconds=self._timeout,
                    approve=user.approver(self.tools, offered=True),
                )
                made = await run_tools([call], self.tools, shared)
                await progress.sent()
            await self._look()
            if user.lacks is not None:
                raise MCPError(
                    MISSING_REQUIRED_CLIENT_CAPABILITY, NOT_APPROVED, {"requiredCapabilities": user.lacks}
                )
            if user.question is not None:
                return types.InputRequiredResult(
                    input_requests={APPROVAL: user.question}, request_state=user.state or None
                )
            if not made.results:
                text = types.TextContent(type="text", text="The call was not executed: its host has to run it.")
                return types.CallToolResult(content=[text], is_error=True)
            result = made.results[0]
            return types.CallToolResult(content=blocks_for(result.content), is_error=result.is_error)

        server = Announcing(
            name,
            version=installed_version(),
            instructions=instructions,
            lifespan=self._following,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
            **(self._resource_handlers() if self._resources is not None else {}),
            **(self._prompt_handlers() if self._prompts is not None else {}),
        )
        server.add_notification_handler("notifications/initialized", types.NotificationParams, connected)
        return server

    def _resource_handlers(self) -> dict[str, Any]:
        import mcp_types as types

        assert self._resources is not None
        offered, clients = self._resources, self._clients

        async def listed(_: Any, __: Any) -> types.ListResourcesResult:
            return types.ListResourcesResult(resources=offered.listed())

        async def templates(_: Any, __: Any) -> types.ListResourceTemplatesResult:
            return types.ListResourceTemplatesResult(resource_templates=offered.templates())

        async def read(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
            return types.ReadResourceResult(contents=await offered.read(params.uri))

        async def subscribe(context: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
            clients.setdefault(context.session._connection, set()).add(params.uri)
            return types.EmptyResult()

        async def unsubscribe(context: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
            clients.setdefault(context.session._connection, set()).discard(params.uri)
            return types.EmptyResult()

        return {
            "on_list_resources": listed,
            "on_list_resource_templates": templates,
            "on_read_resource": read,
            "on_subscribe_resource": subscribe,
            "on_unsubscribe_resource": unsubscribe,
        }

    def _prompt_handlers(self) -> dict[str, Any]:
        import mcp_types as types

        assert self._prompts is not None
        offered = self._prompts

        async def listed(_: Any, __: Any) -> types.ListPromptsResult:
            return types.ListPromptsResult(prompts=offered.listed())

        async def get(_: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
            return await offered.get(params.name, params.arguments or {})

        async def complete(_: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
            name = getattr(params.ref, "name", "")
            found = offered.values_of(name, params.argument.name, params.argument.value)
            return types.CompleteResult(completion=types.Completion(values=found[:MOST_VALUES], total=len(found)))

        return {"on_list_prompts": listed, "on_get_prompt": get, "on_completion": complete}


_SCHEMES = ("http", "https")
_PORTS = ("", ":*")


class _Progress:
    """Sends the progress of one call to its client, in order."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._queue: asyncio.Queue[ToolProgress] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._count = 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()

    def tell(self, event: ToolStarted | ToolProgress | ToolFinished) -> None:
        if isinstance(event, ToolProgress):
            self._queue.put_nowait(event)
            if self._task is None:
                self._task = asyncio.create_task(self._send())

    async def sent(self) -> None:
        """Wait until all progress was sent."""
        if self._task is not None:
            await self._queue.join()

    async def _send(self) -> None:
        while True:
            event = await self._queue.get()
            self._count += 1
            done, total = (float(self._count), None) if event.fraction is None else (event.fraction, 1.0)
            try:
                await self._session.report_progress(done, total, event.message)
            except Exception as error:  # the client has disconnected
                _log.debug("progress_not_sent", error=type(error).__name__)
            finally:
                self._queue.task_done()


@contextlib.contextmanager
def _own_stdout() -> Iterator[Any]:
    """Reserve stdout for the protocol. Meanwhile, other output to stdout is written to stderr."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(saved), "w", encoding="utf-8") as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


class _Gate:
    """Refuses requests without the token, and removes spaces around header values."""

    def __init__(self, app: Any, token: str | None) -> None:
        self._app = app
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
            header = dict(headers).get(b"authorization", b"")
            if self._authorization is not None and not hmac.compare_digest(header, self._authorization):
                refusal = [(b"content-length", b"0"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": refusal})
                await send({"type": "http.response.body", "body": b""})
                return
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


def mcp_service(
    tools: Sequence[ToolLike] = (),
    *,
    session: Session | OpenSession | None = None,
    resources: Mapping[str, object] | None = None,
    prompts: Sequence[ToolLike] | None = None,
    name: str = "callboard",
    description: str = "Send a message to the assistant, and get its reply.",
    instructions: str | None = None,
    approve: Approve | None = None,
    timeout: float = 600.0,
) -> McpService:
    """Make an MCP server of tools, a session, or both: `await mcp_service([search]).serve_stdio()`.

    Clients are notified of changes: of the tools of a source, and of a list or mapping that was passed here.

    Args:
        tools: The tools, or plain functions with type hints and docstrings.
        session: A session to which the tool `ask` sends messages. All clients share it. If you pass a function
            instead, it returns a session for each conversation: `ask` returns the id of the conversation, and
            continues it if a client passes the id. The text of the reply and the tools that run are reported as
            progress. If a client cancels its call, the turn is cancelled.
        resources: The resources by URI: a text, bytes, a `pathlib.Path`, a content block, or a function that
            returns one of these. A URI with variables, such as ``note://{name}``, needs a function with these
            parameters.
        prompts: Functions whose parameters are texts, and whose result is the prompt: a text, content blocks or
            messages.
        name: The server's name.
        description: The description of `ask`, for the model of the client.
        instructions: A text about the use of the server, for the system prompt of the client.
        approve: Decides about each call, as in `TurnOptions`. By default, the client's user is asked about tools
            that need approval. If the client does not support questions, such calls are refused.
        timeout: The time limit in seconds for tools without their own limit.

    Raises:
        ConfigurationError: The library is missing, there is nothing to serve, two tools have one name, or a
            resource's function does not take the variables of its URI.
    """
    require_library()
    # Without a session, the original object is passed on, because it may be a source whose tools change.
    all_tools: Sequence[ToolLike] = tools if session is None else [*tools, ask_tool(session, description)]
    if session is None and not tools and resources is None and prompts is None:
        raise ConfigurationError("an MCP server needs tools or a session to serve")
    return McpService(
        all_tools,
        resources=resources,
        prompts=prompts,
        name=name,
        instructions=instructions,
        approve=approve,
        timeout=timeout,
    )

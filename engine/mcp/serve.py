"""A session or a set of tools as an MCP server, for other hosts.

    tools      each is a tool of the server; it is checked, timed and run as in a turn
    a session  one tool, `ask`, sends a message and returns the reply

A server has no state: it may serve several clients, over stdin and stdout or over streamable HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import anyio
import msgspec

from callboard.adapters import ToolUseBlock
from callboard.bus import SYSTEM_CLOCK, ConfigurationError, ToolFinished, ToolProgress, ToolStarted
from callboard.bus.log import Log

from ..sessions.session import Session
from ..tools.collect import ToolLike, as_tools
from ..tools.context import Approval, ApprovalRequest, Approve, Approved, Denied, Pending
from ..tools.define import tool
from ..tools.handler import Tool
from ..tools.rounds import ToolRoundContext
from ..tools.running import run_tools
from .hooks import answer_of
from .server import require_library

_log = Log("engine.mcp.serve")

OpenSession: TypeAlias = Callable[[str | None], Session | Awaitable[Session]]
"""A function that gets the id of a conversation, or None for a new one, and returns its session."""

ASK = "ask"
"""The name of the tool that sends a message to a session."""

NOT_APPROVED = "it needs an approval, and this client offers no way to ask its user"


class McpService:
    """An MCP server of this program. `mcp_service` makes it. `timeout` is in seconds, for a call of a tool."""

    def __init__(
        self,
        tools: Sequence[ToolLike],
        *,
        name: str,
        instructions: str | None,
        approve: Approve | None,
        timeout: float,
    ) -> None:
        self._given = tools
        self._approve = approve
        self._timeout = timeout
        self._server = self._made(name, instructions)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of now."""
        return as_tools(self._given)

    async def serve_stdio(self) -> None:
        """Serve one client over stdin and stdout, until it disconnects. Other output of the process is written to
        stderr.
        """
        from mcp.server.stdio import stdio_server

        with _own_stdout() as out:
            async with stdio_server(stdout=anyio.wrap_file(out)) as (reads, writes):
                await self._server.run(reads, writes, self._server.create_initialization_options())

    def http_app(self, *, hosts: Sequence[str] = (), token: str | None = None) -> Any:
        """An ASGI application that serves streamable HTTP at ``/mcp``. Its lifespan must run.

        Args:
            hosts: The names by which clients reach it, such as ``mcp.example.com``, besides this machine's own.
            token: The token that clients must send as ``Authorization: Bearer``; None takes all requests.
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
        if token is not None:
            app.add_middleware(_TokenGuard, token=token)
        return app

    # --- What clients see ---

    def _made(self, name: str, instructions: str | None) -> Any:
        import mcp_types as types
        from mcp.server.lowlevel import Server

        from .connection import installed_version
        from .values import blocks_for, tool_of

        async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=[tool_of(each.definition) for each in self.tools])

        async def call_tool(
            context: Any, params: types.CallToolRequestParams
        ) -> types.CallToolResult | types.InputRequiredResult:
            call = ToolUseBlock(f"mcp_{context.request_id}", params.name, params.arguments or {})
            user = _User(context.session, params)
            with _Progress(context.session) as progress:
                shared = ToolRoundContext(
                    clock=SYSTEM_CLOCK,
                    tell=progress.tell,
                    timeout_seconds=self._timeout,
                    approve=self._approver(user),
                )
                made = await run_tools([call], self.tools, shared)
                await progress.sent()
            if user.question is not None:
                return types.InputRequiredResult(input_requests={_APPROVAL: user.question})
            if not made.results:
                text = types.TextContent(type="text", text="The call was not executed: its host has to run it.")
                return types.CallToolResult(content=[text], is_error=True)
            result = made.results[0]
            return types.CallToolResult(content=blocks_for(result.content), is_error=result.is_error)

        return Server(
            name,
            version=installed_version(),
            instructions=instructions,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
        )

    def _approver(self, user: _User) -> Approve:
        """Decides about calls: the host's own function, or else the user of the client."""
        careful = {each.name for each in self.tools if each.needs_approval is not None}

        async def approve(request: ApprovalRequest) -> Approval:
            if self._approve is not None:
                return await answer_of(self._approve, request)
            return await user.decides(request) if request.call.name in careful else Approved()

        return approve


_SCHEMES = ("http", "https")
_PORTS = ("", ":*")
_APPROVAL = "approval"


class _User:
    """The user of a client, who is asked about a call of a tool.

    An older client is asked while the call is in progress. A newer one gets the question as the result, and calls
    again with the answer.
    """

    def __init__(self, session: Any, params: Any) -> None:
        self._session = session
        self._answers = params.input_responses or {}
        self.question: Any = None
        """The question that is the result of the call; None if there is none."""

    async def decides(self, request: ApprovalRequest) -> Approval:
        import mcp_types as types

        capabilities = self._session.client_capabilities
        if capabilities is None or capabilities.elicitation is None:
            return Denied(NOT_APPROVED)
        text = f"May {request.call.name} run with {msgspec.json.encode(request.arguments).decode()}?"
        form = types.ElicitRequestFormParams(message=text, requested_schema={"type": "object", "properties": {}})
        answer = self._answers.get(_APPROVAL)
        if answer is None and not self._session.can_send_request:
            self.question = types.ElicitRequest(params=form)
            return Pending()
        if answer is None:
            try:
                answer = await self._session.elicit_form(form.message, form.requested_schema)
            except Exception as error:
                _log.warning("approval_not_asked", error=type(error).__name__)
                return Denied(NOT_APPROVED)
        return Approved() if getattr(answer, "action", None) == "accept" else Denied("the user declined it")


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
        """Return when all progress is sent."""
        if self._task is not None:
            await self._queue.join()

    async def _send(self) -> None:
        while True:
            event = await self._queue.get()
            self._count += 1
            done, total = (float(self._count), None) if event.fraction is None else (event.fraction, 1.0)
            try:
                await self._session.report_progress(done, total, event.message)
            except Exception as error:  # the client has gone
                _log.debug("progress_not_sent", error=type(error).__name__)
            finally:
                self._queue.task_done()


@contextlib.contextmanager
def _own_stdout() -> Iterator[Any]:
    """A file for the protocol alone. During that time, other output to stdout is written to stderr."""
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


class _TokenGuard:
    """Refuses requests without the token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                headers = [(b"content-length", b"0"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


def mcp_service(
    tools: Sequence[ToolLike] = (),
    *,
    session: Session | OpenSession | None = None,
    name: str = "callboard",
    description: str = "Send a message to the assistant, and get its reply.",
    instructions: str | None = None,
    approve: Approve | None = None,
    timeout: float = 600.0,
) -> McpService:
    """An MCP server with these tools, a session, or both: `await mcp_service([search]).serve_stdio()`.

    Args:
        tools: The tools, or plain functions with type hints and docstrings.
        session: A session, to which the tool `ask` sends messages. All clients share it. A function makes a
            session for each conversation instead: `ask` returns the id of the conversation, and continues it if a
            client passes the id.
        name: The server's name.
        description: The description of `ask`, for the model of the client.
        instructions: A text about the use of the server, for the system prompt of the client.
        approve: Decides about each call, as in `TurnOptions`. By default the client's user is asked about tools
            that need approval. If the client can't ask, such calls are refused.
        timeout: Seconds for a call of a tool without its own limit.

    Raises:
        ConfigurationError: The library is missing, there is nothing to serve, or two tools have one name.
    """
    require_library()
    # Without a session the tools stay the object that was given: it may be a source, whose tools change.
    given: Sequence[ToolLike] = tools if session is None else [*tools, _ask(session, description)]
    if session is None and not tools:
        raise ConfigurationError("an MCP server needs tools or a session to serve")
    as_tools(given)
    return McpService(given, name=name, instructions=instructions, approve=approve, timeout=timeout)


def _ask(session: Session | OpenSession, description: str) -> Tool:
    if isinstance(session, Session):
        known = session

        async def ask_it(message: Annotated[str, "The message."]) -> object:
            reply = await known.send(message)
            return [block for block in reply.content if block.__class__.__name__ in ("TextBlock", "ImageBlock")]

        return tool(ask_it, name=ASK, description=description)

    opened: dict[str, Session] = {}
    make = session

    async def ask(
        message: Annotated[str, "The message."],
        conversation: Annotated[str | None, "The id of a conversation to continue, from an earlier reply."] = None,
    ) -> dict[str, str]:
        found = opened.get(conversation) if conversation is not None else None
        if found is None:
            made = make(conversation)
            found = await made if inspect.isawaitable(made) else made
            opened[found.id] = found
        reply = await found.send(message)
        return {"reply": reply.text, "conversation": found.id}

    return tool(ask, name=ASK, description=description)

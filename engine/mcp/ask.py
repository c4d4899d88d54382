"""The tool `ask` of an MCP server: it sends a message to a session, and reports the reply as it arrives.

A tool of the session may need the approval of the client's user. An older client is asked while the turn waits. A
newer client gets the question as the result of `ask`, and calls `ask` again with the answer.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from callboard.bus import ImageBlock, TextBlock, TextDelta, ToolProgress, ToolStarted
from callboard.bus.log import Log

from ..agents import AGENT_ROUNDS
from ..conversation.options import TurnOptions
from ..conversation.results import Reply
from ..generation.streaming import TurnStream
from ..sessions.session import Session
from ..tools.context import Approval, ApprovalRequest, Approve, Approved, Denied, Pending, ToolContext, ToolError
from ..tools.definitions import Tool, as_tools, tool
from .hooks import answer_of

_log = Log("engine.mcp.serve")

OpenSession: TypeAlias = Callable[[str | None], Session | Awaitable[Session]]
"""A function that receives the id of a conversation, or None for a new one, and returns its session."""

ASK: Final = "ask"
"""The name of the tool that sends a message to a session."""

PROGRESS_SECONDS: Final = 0.2
"""Seconds between two reports of progress. A host redraws a line for each report."""

MOST_CONVERSATIONS: Final = 1000
"""The maximum number of conversations that are remembered. The least recently used one is dropped first."""


NOT_APPROVED: Final = "it needs an approval, and this client offers no way to ask its user"

APPROVAL: Final = "approval"
"""The name of the question in a call's result, and of its answer in the next call."""

# --- The tool ---


def ask_tool(session: Session | OpenSession, description: str) -> Tool:
    """Make the tool `ask` for one session, or with one session for each conversation."""
    if isinstance(session, Session):
        conversation_session = session

        async def ask_it(message: Annotated[str, "The message."], context: ToolContext) -> object:
            reply = await _answered(conversation_session, message, context)
            return [block for block in reply.content if isinstance(block, TextBlock | ImageBlock)]

        return tool(ask_it, name=ASK, description=description)

    opened: OrderedDict[str, Session] = OrderedDict()
    make = session

    async def ask(
        message: Annotated[str, "The message."],
        context: ToolContext,
        conversation: Annotated[str | None, "The id of a conversation to continue, from an earlier reply."] = None,
    ) -> dict[str, str]:
        user = asked_user.get()
        conversation_id = conversation or (user.state if user is not None and user.state else None)
        found = opened.get(conversation_id) if conversation_id is not None else None
        if found is None:
            made = make(conversation)
            found = await made if inspect.isawaitable(made) else made
        opened[found.id] = found
        opened.move_to_end(found.id)
        if len(opened) > MOST_CONVERSATIONS:
            opened.popitem(last=False)
        reply = await _answered(found, message, context)
        return {"reply": reply.text, "conversation": found.id}

    return tool(ask, name=ASK, description=description)


def unknown_conversation(conversation: str) -> ToolError:
    """The error of `ask` for a conversation id that is unknown or was dropped."""
    return ToolError(f"there is no conversation {conversation!r}. Leave it out to start a new one")


async def _answered(session: Session, message: str, context: ToolContext) -> Reply:
    user = asked_user.get()
    options: TurnOptions = {"max_tool_rounds": AGENT_ROUNDS}
    if user is not None:
        options["approve"] = user.approver(as_tools(session.tools))
    answer = None if user is None else user.answer()
    if waiting := session.pending_calls:
        decision = answer or Denied("the user did not answer")
        reply = await _follow(session.submit_stream({call.id: decision for call in waiting}, **options), context)
        if answer is not None:
            return _with_state(user, session, reply)
    return _with_state(user, session, await _follow(session.stream(message, **options), context))


def _with_state(user: AskedUser | None, session: Session, reply: Reply) -> Reply:
    if user is not None and session.pending_calls:
        user.state = session.id
    return reply


async def _follow(stream: TurnStream, context: ToolContext) -> Reply:
    """Wait for the reply of a turn, and report its text and its tools as progress. If this call is cancelled, the
    turn is, too.
    """
    async with stream as turn:
        async with turn.reader(coalesce=True, min_interval=PROGRESS_SECONDS) as reader:
            while batch := await reader.take():
                for event in batch:
                    match event:
                        case TextDelta(text=text):
                            context.progress(text)
                        case ToolStarted(tool_name=name):
                            context.progress(f"Running {name}")
                        case ToolProgress(tool_name=name, message=str(progress_text)):
                            context.progress(f"{name}: {progress_text}")
                        case _:
                            pass
        return await turn.message()


# --- The user of the client ---


class AskedUser:
    """Asks the user of a client about tool calls.

    An older client is asked during the call. A newer client gets the question as the call's result, and repeats
    the call with the answer.
    """

    def __init__(self, session: Any, params: Any, approve: Approve | None) -> None:
        self._session = session
        self._answers = dict(params.input_responses or {})
        self._approve = approve
        self._open: list[ApprovalRequest] = []
        self.state: str = params.request_state or ""
        """The id of the conversation whose question this call answers, or that waits for an answer now. It may be
        empty.
        """
        self.question: Any = None
        """The question that is returned as the call's result; None if there is none."""
        self.lacks: dict[str, Any] | None = None
        """The capability that this call needs and a newer client lacks; None if there is none."""

    async def _decide(self, request: ApprovalRequest) -> Approval:
        """Decide about a call of a tool that this server offers."""
        from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

        if not self._can_be_asked and self._session.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            self.lacks = {"elicitation": {}}
            return Pending()
        return self.answer() or await self._ask_client(request)

    def approver(self, tools: Iterable[Tool], *, offered: bool = False) -> Approve:
        """The approve hook: the host's own, or else one that asks the client's user about the tools that need it.

        `offered` means that this server offers the tools itself. Otherwise a session uses them.
        """
        names = {each.name for each in tools if each.needs_approval is not None}
        ask = self._decide if offered else self._ask_client

        async def approve(request: ApprovalRequest) -> Approval:
            if self._approve is not None:
                return await answer_of(self._approve, request)
            return await ask(request) if request.call.name in names else Approved()

        return approve

    def answer(self) -> Approval | None:
        """The answer to an earlier question. It is returned only once."""
        answer = self._answers.pop(APPROVAL, None)
        return None if answer is None else _approval(answer)

    @property
    def _can_be_asked(self) -> bool:
        capabilities = self._session.client_capabilities
        return capabilities is not None and capabilities.elicitation is not None

    async def _ask_client(self, request: ApprovalRequest) -> Approval:
        """Ask an older client and wait for its answer. For a newer client, store the question as the call's
        result.
        """
        import mcp_types as types

        if not self._can_be_asked:
            return Denied(NOT_APPROVED)
        now = self._session.can_send_request
        self._open = [request] if now else [*self._open, request]
        text = "\n".join(
            f"May {each.call.name} run with {msgspec.json.encode(each.arguments).decode()}?" for each in self._open
        )
        form = types.ElicitRequestFormParams(message=text, requested_schema={"type": "object", "properties": {}})
        if not now:
            self.question = types.ElicitRequest(params=form)
            return Pending()
        try:
            return _approval(await self._session.elicit_form(form.message, form.requested_schema))
        except Exception as error:
            _log.warning("approval_not_asked", error=type(error).__name__)
            return Denied(NOT_APPROVED)


def _approval(answer: Any) -> Approval:
    return Approved() if getattr(answer, "action", None) == "accept" else Denied("the user declined it")


asked_user: ContextVar[AskedUser | None] = ContextVar("callboard mcp user", default=None)
"""The user of the current call."""

"""The tool `ask` of an MCP server: it sends a message to a session, and reports the reply as it arrives.

A tool of the session may need the approval of the client's user. An older client is asked while the turn waits. A
newer client gets the question as the result of `ask`, and calls `ask` again with the answer.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Annotated, Final, Protocol, TypeAlias

from callboard.bus import ImageBlock, TextBlock, TextDelta, ToolProgress, ToolStarted

from ..agents import AGENT_ROUNDS
from ..conversation.options import TurnOptions
from ..conversation.results import Reply
from ..generation.streaming import TurnStream
from ..sessions.session import Session
from ..tools.context import Approval, Approve, Denied, ToolContext, ToolError
from ..tools.definitions import Tool, as_tools, tool

OpenSession: TypeAlias = Callable[[str | None], Session | Awaitable[Session]]
"""A function that receives the id of a conversation, or None for a new one, and returns its session."""

ASK: Final = "ask"
"""The name of the tool that sends a message to a session."""

PROGRESS_SECONDS: Final = 0.2
"""Seconds between two reports of progress. A host redraws a line for each report."""

MOST_CONVERSATIONS: Final = 1000
"""The maximum number of conversations that are remembered. The least recently used one is dropped first."""


class AskingUser(Protocol):
    """The user of the client that has called `ask`."""

    state: str
    """The id of the conversation whose question this call answers, or that waits for an answer now; empty if there
    is none.
    """

    def answer(self) -> Approval | None:
        """The answer to an earlier question. It is returned only once."""
        ...

    def approver(self, careful: Iterable[str]) -> Approve:
        """An approve hook that asks the user about these tools."""
        ...


asking_user: ContextVar[AskingUser | None] = ContextVar("callboard mcp user", default=None)
"""The user of the current call."""


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
        user = asking_user.get()
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
    user = asking_user.get()
    options: TurnOptions = {"max_tool_rounds": AGENT_ROUNDS}
    if user is not None:
        careful = {each.name for each in as_tools(session.tools) if each.needs_approval is not None}
        options["approve"] = user.approver(careful)
    answer = None if user is None else user.answer()
    if waiting := session.pending_calls:
        decision = answer or Denied("the user did not answer")
        reply = await _follow(session.submit_stream({call.id: decision for call in waiting}, **options), context)
        if answer is not None:
            return _with_state(user, session, reply)
    return _with_state(user, session, await _follow(session.stream(message, **options), context))


def _with_state(user: AskingUser | None, session: Session, reply: Reply) -> Reply:
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

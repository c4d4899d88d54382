"""The tool `ask` of an MCP server: it sends a message to a session, and reports the reply while it comes.

A tool of the session may need the approval of the client's user. An older client is asked while the turn waits. A
newer one gets the question as the result of `ask`, and calls again with the answer and with the conversation.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Annotated, Final, Protocol, TypeAlias

from callboard.bus import ImageBlock, TextBlock, TextDelta, ToolProgress, ToolStarted

from ..conversation.options import TurnOptions
from ..conversation.results import Reply
from ..functions.agents import AGENT_ROUNDS
from ..generation.streaming import TurnStream
from ..sessions.session import Session
from ..tools.collect import as_tools
from ..tools.context import Approval, Approve, Denied, ToolContext, ToolError
from ..tools.define import tool
from ..tools.handler import Tool

OpenSession: TypeAlias = Callable[[str | None], Session | Awaitable[Session]]
"""A function that gets the id of a conversation, or None for a new one, and returns its session."""

ASK: Final = "ask"
"""The name of the tool that sends a message to a session."""

PROGRESS_SECONDS: Final = 0.2
"""Seconds between two reports of progress. Hosts redraw a line for each."""

MOST_CONVERSATIONS: Final = 1000
"""The number of conversations that are remembered. The one that was used least recently is forgotten."""


class AskingUser(Protocol):
    """The user of the client that has called `ask`."""

    state: str
    """The conversation whose question this call answers, or that waits for an answer now; empty if none."""

    def answer(self) -> Approval | None:
        """The answer to an earlier question, once."""
        ...

    def approver(self, careful: Iterable[str]) -> Approve:
        """Decides about the calls of a turn: a function that asks about these tools."""
        ...


asking_user: ContextVar[AskingUser | None] = ContextVar("callboard mcp user", default=None)
"""The user of the call that runs here."""


def ask_tool(session: Session | OpenSession, description: str) -> Tool:
    """The tool for one session, or for one session for each conversation."""
    if isinstance(session, Session):
        known = session

        async def ask_it(message: Annotated[str, "The message."], context: ToolContext) -> object:
            reply = await _answered(known, message, context)
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
        wanted = conversation or (user.state if user is not None and user.state else None)
        found = opened.get(wanted) if wanted is not None else None
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
    """The error of `ask` for an id that it did not give, or has forgotten."""
    return ToolError(f"there is no conversation {conversation!r}. Leave it out to start a new one")


async def _answered(session: Session, message: str, context: ToolContext) -> Reply:
    user = asking_user.get()
    options: TurnOptions = {"max_tool_rounds": AGENT_ROUNDS}
    if user is not None:
        careful = {each.name for each in as_tools(session.tools) if each.needs_approval is not None}
        options["approve"] = user.approver(careful)
    answer = None if user is None else user.answer()
    if waiting := session.pending_calls:
        given = answer or Denied("the user did not answer")
        reply = await _told(session.submit_stream({call.id: given for call in waiting}, **options), context)
        if answer is not None:
            return _with_state(user, session, reply)
    return _with_state(user, session, await _told(session.stream(message, **options), context))


def _with_state(user: AskingUser | None, session: Session, reply: Reply) -> Reply:
    if user is not None and session.pending_calls:
        user.state = session.id
    return reply


async def _told(stream: TurnStream, context: ToolContext) -> Reply:
    """The reply of a turn. Its text and its tools are reported as progress. The turn ends with this call."""
    async with stream as turn:
        async with turn.reader(coalesce=True, min_interval=PROGRESS_SECONDS) as reader:
            while batch := await reader.take():
                for event in batch:
                    match event:
                        case TextDelta(text=text):
                            context.progress(text)
                        case ToolStarted(tool_name=name):
                            context.progress(f"Running {name}")
                        case ToolProgress(tool_name=name, message=str(said)):
                            context.progress(f"{name}: {said}")
                        case _:
                            pass
        return await turn.message()

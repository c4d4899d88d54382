"""Tool calls: the context and result of a round, and the calls that wait for an answer.

If a call waits for an approval or belongs to a passive tool, the turn has ended, and only its messages are stored.
So waiting calls are derived only from the history. This works after a restart and in another process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

import anyio
import msgspec

from callboard.adapters import Message, Role, ToolResultBlock, ToolUseBlock
from callboard.bus import Clock, ToolFinished, ToolProgress, ToolStarted
from callboard.bus.errors import CallboardError
from callboard.bus.log import takes_old_names
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import ended_well

from ..tree import Caller
from .context import Approve, Approved, Denied, ToolError, as_content, denial
from .definitions import Handoff, Tool, ToolLike, as_tools


class InvalidToolCallError(CallboardError):
    """The arguments of a call don't follow the tool's schema, or are not a JSON object.

    The error's text has the path of the problem in the arguments.
    """


RepairToolCall: TypeAlias = Callable[
    [ToolUseBlock, InvalidToolCallError, Tool], JsonObject | Awaitable[JsonObject | None] | None
]
"""A function that receives a call, its error and its tool, and returns other arguments. If it returns None, the
model gets the error.

The function is called once for each invalid call. If the model's text was not a JSON object, the text is in the
call's `raw_arguments`. A plain function runs in a thread.
"""


OnToolEvent: TypeAlias = Callable[[ToolStarted | ToolProgress | ToolFinished], None]


class ToolRoundContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context that the calls of one round share."""

    clock: Clock
    """The clock that measures how long tools take."""
    tell: OnToolEvent
    """A function that receives the events."""
    messages: tuple[Message, ...] = ()
    """The conversation, up to and including the message with the calls."""
    session_id: str | None = None
    """The id of the session, if there is one."""
    turn_id: str | None = None
    """The id of the turn."""
    timeout_seconds: float = 60.0
    """The time limit in seconds for tools without their own limit."""
    approve: Approve | None = None
    """A function that decides about each call."""
    repair: RepairToolCall | None = None
    """A function that repairs invalid arguments."""
    cut_off: bool = False
    """Whether the reply was cut off. Arguments of a cut-off reply are never repaired."""
    approved: frozenset[str] = frozenset()
    """The ids of calls for which `approve` is no longer called."""
    caller: Callable[[ToolUseBlock], Caller] | None = None
    """A function that returns the tool run of a call, for its place in the tree of turns."""
    asking: anyio.Lock = msgspec.field(default_factory=lambda: anyio.Lock())
    """A lock, so that only one approval is requested at a time."""


class ToolRound(msgspec.Struct, frozen=True):
    """The results of a round."""

    results: tuple[ToolResultBlock, ...]
    """The results of the calls that were run or refused, in the order of the calls."""
    waiting: tuple[ToolUseBlock, ...] = ()
    """The calls that are left open, in order."""


def not_executed(call: ToolUseBlock) -> ToolResultBlock:
    """The result of a call that was not run, because its turn ended before."""
    from callboard.adapters.requests.history import NOT_EXECUTED

    return ToolResultBlock(call.id, NOT_EXECUTED, is_error=True)


# --- Calls that wait for an answer ---


Answer: TypeAlias = Approved | Denied | ToolResultBlock | ToolError | object
"""An answer to a call. `Approved()` runs the call, and `Denied(...)` does not. Any other value is the call's
result, like the return value of a tool.
"""


def open_calls(messages: Sequence[Message]) -> tuple[ToolUseBlock, ...]:
    """The calls of the last reply without a result.

    Empty if the reply was cut off, or another message followed.
    """
    answered: set[str] = set()
    for message in reversed(messages):
        match message.role:
            case Role.TOOL:
                answered |= {block.tool_use_id for block in message.content if isinstance(block, ToolResultBlock)}
            case Role.ASSISTANT if not was_cut_off(message):
                return tuple(call for call in message.tool_uses if call.id not in answered and not call.incomplete)
            case _:
                break
    return ()


def last_reply(messages: Sequence[Message]) -> Message:
    """The assistant's last message.

    Raises:
        LookupError: There is none.
    """
    for message in reversed(messages):
        if message.role is Role.ASSISTANT:
            return message
    raise LookupError("there is no reply yet")


def results_in(messages: Iterable[Message]) -> dict[str, ToolResultBlock]:
    """The results of calls in a history, without errors, by the ids of the calls."""
    blocks = (block for message in messages if message.role is Role.TOOL for block in message.content)
    return {each.tool_use_id: each for each in blocks if isinstance(each, ToolResultBlock) and not each.is_error}


def handoff_in(reply: Message, tools: Iterable[Tool], ran: Container[str]) -> Handoff | None:
    """The agent that takes over the conversation: the agent of the first handoff in the reply that was run."""
    handoffs = {tool.name: tool for tool in tools if isinstance(tool, Handoff)}
    called = (call.name for call in reply.tool_uses if call.id in ran)
    return next((handoffs[name] for name in called if name in handoffs), None)


def agent_now(tools: Sequence[ToolLike], messages: Sequence[Message]) -> Handoff | None:
    """The agent that has the conversation after its handoffs; None if no handoff was run. `tools` are the first
    agent's tools.
    """
    current, found = as_tools(tools), None
    if not any(isinstance(tool, Handoff) for tool in current):
        return None
    results = results_in(messages)
    waiting = {call.id for call in open_calls(messages)}
    for message in messages:
        if waiting.isdisjoint(call.id for call in message.tool_uses):
            agent = handoff_in(message, current, results)
            if agent is not None:
                current, found = as_tools(agent.tools), agent
    return found


def was_cut_off(message: Message) -> bool:
    """Whether a reply was cancelled, broke off, or did not end normally for another reason."""
    ended = message.metadata.stop_reason if message.metadata is not None else None
    return ended is not None and not ended_well(ended)


class Answers(msgspec.Struct, frozen=True):
    """The answers of a host, split into results and calls to run."""

    results: Mapping[str, ToolResultBlock]
    """The known results, by the ids of the calls."""
    to_run: tuple[ToolUseBlock, ...]
    """The calls that were approved."""


@takes_old_names(given="answers")
def answers_to(messages: Sequence[Message], answers: Mapping[str, Answer], tools: Sequence[Tool]) -> Answers:
    """Check a host's answers to open calls, and split them into results and calls to run.

    Args:
        messages: The conversation.
        answers: The answers by the ids of the calls.
        tools: The tools of the session, which run the approved calls.

    Raises:
        CallboardError: An answer belongs to no open call or can't be an answer, or there is no answer at all.
    """
    calls = open_calls(messages)
    if not calls and not answers and (not messages or messages[-1].role is not Role.TOOL):
        raise CallboardError("no tool call of this session is waiting for an answer. Use send()")
    _require_open(calls, answers, messages)
    runnable = {tool.name for tool in tools if tool.handler is not None}
    results: dict[str, ToolResultBlock] = {}
    to_run: list[ToolUseBlock] = []
    for call in calls:
        if call.id not in answers:
            continue
        answer = answers[call.id]
        if not isinstance(answer, Approved):
            results[call.id] = _result(call, answer)
        elif call.name in runnable:
            to_run.append(call)
        else:
            raise CallboardError(
                f"call {call.id} can't be run: {call.name!r} has no handler in this session. Submit its "
                f"result, or resume the session with tools=[...] that have a handler"
            )
    return Answers(results, tuple(to_run))


def _require_open(
    calls: Sequence[ToolUseBlock], answers: Mapping[str, Answer], messages: Sequence[Message]
) -> None:
    names = {call.id: call.name for call in calls}
    waiting = ", ".join(f"{id_} ({name})" for id_, name in names.items()) or "none"
    if unknown := [id_ for id_ in answers if id_ not in names]:
        raise CallboardError(
            f"no open call has the id {', '.join(unknown)}. Open calls: {waiting}. See Session.pending_calls"
            + "".join(f". {why}" for id_ in unknown if (why := _why_closed(id_, messages)))
        )
    if calls and not answers:
        raise CallboardError(f"no call was answered. Open calls: {waiting}. See Session.pending_calls")


def _why_closed(tool_use_id: str, messages: Sequence[Message]) -> str:
    """The reason why a call does not wait for an answer; empty if there is no call of that id."""
    for message in reversed(messages):
        for block in message.content:
            match block:
                case ToolResultBlock() if block.tool_use_id == tool_use_id:
                    text = block.text if len(block.text) <= 100 else f"{block.text[:100]}…"
                    return f"{tool_use_id} already has a result, {text!r}. Continue with submit({{}}) or send()"
                case ToolUseBlock() if block.id == tool_use_id and (block.incomplete or was_cut_off(message)):
                    return f"The reply that has {tool_use_id} was cut off. Use send()"
                case ToolUseBlock() if block.id == tool_use_id:
                    return f"Messages followed {tool_use_id}, so it counts as interrupted"
                case _:
                    pass
    return ""


def _result(call: ToolUseBlock, answer: Answer) -> ToolResultBlock:
    match answer:
        case Denied(reason=reason):
            return ToolResultBlock(call.id, denial(reason), is_error=True)
        case ToolError(content=content):
            return ToolResultBlock(call.id, content, is_error=True)
        case ToolResultBlock():
            return msgspec.structs.replace(answer, tool_use_id=call.id)
        case _:
            try:
                return ToolResultBlock(call.id, as_content(answer))
            except TypeError as error:
                raise CallboardError(f"the answer to {call.id} ({call.name}) is invalid: {error}") from error

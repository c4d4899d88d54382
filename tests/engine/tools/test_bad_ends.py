"""Calls of a reply that did not end well: nobody runs them, and nothing waits for them."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters import (
    CanonicalRequest,
    Message,
    MessageMetadata,
    Role,
    StopReason,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.adapters.requests.history import NOT_EXECUTED
from callboard.bus import Cost, CostSource, TokenUsage
from callboard.bus.values.messages import ended_well, with_whole_calls
from callboard.engine import Tool, tool
from callboard.engine.calls.outcome import CallOutcome
from callboard.engine.middleware import Next
from callboard.engine.tools import open_calls
from tests.support.engines import running, talking
from tests.support.scripted import Say

BAD = [reason for reason in StopReason if not ended_well(reason)]
SCRIPTED = [reason for reason in BAD if reason not in (StopReason.CANCELLED, StopReason.ERROR)]
ASK = Tool(ToolDefinition("ask", "Asks a person."))
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    ran.append(disk)
    return "wiped"


def ended(reason: StopReason, *names: str) -> Say:
    """A reply with calls of these tools that ends so."""
    say = Say("Well", calls=[(name, {"disk": "sda"}) for name in names])
    say.reply = msgspec.structs.replace(say.reply, stop=reason)
    return say


def test_three_ends_are_good() -> None:
    """What a wire says of calls, of a turn, and of a pause; everything else, also what is still unheard of."""
    assert {reason for reason in StopReason if ended_well(reason)} == {
        StopReason.TOOL_USE,
        StopReason.END_TURN,
        StopReason.PAUSE_TURN,
    }


@pytest.mark.parametrize("reason", list(StopReason), ids=str)
def test_settling_calls_twice_changes_nothing(reason: StopReason) -> None:
    """A call that was incomplete stays so, and content without calls is the same object."""
    calls = (ToolUseBlock("tu_1", "wipe", {}), ToolUseBlock("tu_2", "wipe", {}, incomplete=True))
    settled = with_whole_calls(calls, reason)
    assert [call.incomplete for call in settled if isinstance(call, ToolUseBlock)] == [
        not ended_well(reason),
        True,
    ]
    assert with_whole_calls(settled, reason) is settled


@pytest.mark.parametrize("reason", [reason for reason in SCRIPTED if reason is not StopReason.MAX_TOKENS], ids=str)
@pytest.mark.anyio
async def test_the_turn_is_over_and_each_call_says_that_it_was_not_executed(reason: StopReason) -> None:
    """The model is not asked again by itself; with the next turn it learns what did not happen."""
    async with talking(ended(reason, "wipe", "ask"), Say("fine"), tools=[wipe, ASK]) as (session, _):
        message = await session.send("go")
        assert (message.text, session.pending_calls, ran) == ("Well", (), [])
        results = [block for block in session.messages[-1].content if isinstance(block, ToolResultBlock)]
        assert [(result.content, result.is_error) for result in results] == [(NOT_EXECUTED, True)] * 2
        assert (await session.send("and now?")).text == "fine"


@pytest.mark.anyio
async def test_at_the_limit_of_tokens_the_model_is_told() -> None:
    """A shorter call may fit; whole arguments are no reason to run the call."""
    async with talking(ended(StopReason.MAX_TOKENS, "wipe"), Say("fine"), tools=[wipe]) as (session, _):
        assert (await session.send("go")).text == "fine"
        assert ran == []


@pytest.mark.anyio
async def test_a_pause_with_calls_runs_them() -> None:
    """The reply goes on with their results."""
    async with talking(ended(StopReason.PAUSE_TURN, "wipe"), Say("fine"), tools=[wipe]) as (session, _):
        assert (await session.send("go")).text == "fine"
        assert ran == ["sda"]


@pytest.mark.anyio
async def test_a_reply_of_middleware_is_judged_like_any_other() -> None:
    """Whoever answers: the engine runs no call of a reply that did not end well."""

    async def filtered(request: CanonicalRequest, next: Next) -> CallOutcome:
        outcome = await next(request)
        response = msgspec.structs.replace(outcome.response, stop_reason=StopReason.CONTENT_FILTER)
        return CallOutcome(response=response, cost=outcome.cost)

    async with running(Say(calls=[("wipe", {"disk": "sda"})]), middleware=[filtered]) as (engine, _):
        session = engine.session("s:m", tools=[wipe])
        message = await session.send("go")
        assert [call.incomplete for call in message.tool_uses] == [True]
        assert ran == []


@pytest.mark.parametrize("reason", BAD, ids=str)
def test_a_stored_reply_that_ended_badly_has_no_open_calls(reason: StopReason) -> None:
    """Also one that was stored before its calls were marked."""
    metadata = MessageMetadata(
        provider="s", model="s:m", usage=TokenUsage(1, 1), cost=Cost(0, CostSource.COMPUTED), stop_reason=reason
    )
    asked = Message(Role.ASSISTANT, (ToolUseBlock("tu_1", "ask", {}),), metadata=metadata)
    assert open_calls([Message.user("go"), asked]) == ()

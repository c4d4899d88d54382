"""A turn that ends while its tools run keeps the finished results and runs no tool again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard.adapters import (
    CanonicalRequest,
    Message,
    MessageMetadata,
    RequestTimeoutError,
    Role,
    StopReason,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.adapters.requests.history import NOT_EXECUTED
from callboard.bus import (
    CallboardError,
    CancelledError,
    Cost,
    CostSource,
    StreamError,
    TokenUsage,
    ToolFinished,
    ToolStarted,
    TurnComplete,
)
from callboard.bus.streams.events import TurnEvent
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import ended_well, with_whole_calls
from callboard.engine import ApprovalRequest, Approved, Engine, Pending, Session, Tool, ToolContext, tool
from callboard.engine.calls.outcome import CallOutcome
from callboard.engine.middleware import Next
from callboard.engine.tools import open_calls
from callboard.engine.tools.running import INTERRUPTED

from ...support.engines import keeping, registry, requests_of, running, talking
from ...support.scripted import Say

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    ran.append("add")
    return a + b


@tool
async def hang() -> None:
    """Never ends."""
    ran.append("hang")
    await anyio.sleep_forever()


@tool
def hang_in_thread(context: ToolContext) -> None:
    """Waits for the abort signal."""
    ran.append("hang_in_thread")
    context.abort_signal.wait_in_thread()


@tool(needs_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    ran.append("pay")
    return f"paid {euros}"


ASK = Tool(ToolDefinition("ask", "Asks a person."))
TOOLS = [add, hang, pay, ASK]
ADD_AND_HANG = Say("Let me see", calls=[("add", {"a": 1, "b": 2}), ("hang", {})])


def results(message: Message) -> list[tuple[str, bool]]:
    return [(block.text, block.is_error) for block in message.content if isinstance(block, ToolResultBlock)]


def asked(engine: Engine) -> list[list[tuple[str, bool]]]:
    """The tool results in the last request to the scripted adapter."""
    return [results(message) for message in requests_of(engine)[-1].messages if message.role is Role.TOOL]


def ids(session: Session, reply: int) -> list[str]:
    return [call.id for call in session.messages[reply].tool_uses]


async def cut_short(turn: Awaitable[Any], end: Callable[[], Awaitable[object]]) -> CallboardError:
    """The error of a turn that `end` interrupts after a second."""
    running = asyncio.ensure_future(turn)
    await anyio.sleep(1)
    await end()
    with pytest.raises(CallboardError) as caught:
        await running
    return caught.value


async def test_finished_results_are_kept_and_the_others_are_marked_as_cancelled() -> None:
    async with running(ADD_AND_HANG, Say("fine")) as (engine, _):
        session = engine.session("s:m", tools=TOOLS)
        error = await cut_short(session.send("go"), session.cancel)
        assert isinstance(error, CancelledError)
        assert results(session.messages[-1]) == [("3", False), (INTERRUPTED, True)]
        assert session.pending_calls == ()
        turn = error.turn  # type: ignore[attr-defined]
        assert (turn.status, turn.messages) == ("cancelled", session.messages)
        assert [result.text for result in turn.steps[-1].tool_results] == ["3", INTERRUPTED]
        assert (await session.send("never mind")).text == "fine"
        assert asked(engine) == [[("3", False), (INTERRUPTED, True)]]
        assert ran == ["add", "hang"]


async def test_each_tool_start_event_has_an_end_event() -> None:
    async with talking(ADD_AND_HANG, tools=TOOLS) as (session, events):
        seen: list[TurnEvent] = []
        with pytest.raises(CancelledError):
            async with session.stream("go") as turn:
                async for event in turn:
                    seen.append(event)  # type: ignore[arg-type]
                    if isinstance(event, ToolStarted) and event.tool_name == "hang":
                        await turn.cancel()
        started = [event.tool_use_id for event in seen if isinstance(event, ToolStarted)]
        ended = {event.tool_use_id: event.is_error for event in seen if isinstance(event, ToolFinished)}
        assert list(ended.values()) == [False, True]
        assert sorted(started) == sorted(ended)
        assert isinstance(seen[-1], TurnComplete)
        assert seen[-1].status == "cancelled"
        (end,) = [e.data for e in events.take() if e.topic == "session.turn_completed"]
        assert end.status == "cancelled"  # type: ignore[attr-defined]


async def test_a_turn_that_times_out_keeps_the_finished_results() -> None:
    """One of the two tools is a function in a thread."""
    say = Say(calls=[("hang_in_thread", {}), ("add", {"a": 1, "b": 2})])
    async with talking(say, Say("fine"), tools=[add, hang_in_thread]) as (session, _):
        with pytest.raises(RequestTimeoutError, match="longer than 5 s"):
            await session.send("go", timeout=5)
        assert results(session.messages[-1]) == [(INTERRUPTED, True), ("3", False)]
        assert (await session.send("so?")).text == "fine"


async def test_calls_that_had_not_started_were_not_executed() -> None:
    """A call that waits for an approval or for an answer ends with the cancelled turn."""
    calls = [("hang", {}), ("pay", {"euros": 5}), ("ask", {})]
    async with running(Say(calls=calls)) as (engine, _):  # type: ignore[arg-type]
        session = engine.session("s:m", tools=TOOLS)
        await cut_short(session.send("go"), session.cancel)
        assert results(session.messages[-1]) == [(INTERRUPTED, True), (NOT_EXECUTED, True), (NOT_EXECUTED, True)]
        assert session.pending_calls == ()
        assert ran == ["hang"]


async def test_a_tool_or_an_approval_hook_can_cancel_the_turn() -> None:
    """The result of the tool is kept. A pending call doesn't wait after the turn."""
    sessions: list[Session] = []

    @tool
    async def stop() -> str:
        """Stop it all."""
        await sessions[0].cancel()
        return "stopping"

    async def approve(request: ApprovalRequest) -> Approved | Pending:
        if request.call.name == "stop":
            return Approved()
        await sessions[0].cancel()
        return Pending()

    for name, result in (("stop", ("stopping", False)), ("pay", (NOT_EXECUTED, True))):
        arguments: JsonObject = {"euros": 1} if name == "pay" else {}
        async with running(Say(calls=[(name, arguments)]), Say("unasked")) as (engine, _):
            session = engine.session("s:m", tools=[stop, pay], approve=approve)
            sessions[:] = [session]
            with pytest.raises(CancelledError) as caught:
                await session.send("go")
            assert caught.value.turn.status == "cancelled"  # type: ignore[attr-defined]
            assert results(session.messages[-1]) == [result]
            assert session.pending_calls == ()


async def test_a_late_answer_is_refused_with_the_result_of_the_call() -> None:
    """The error says to call `submit({})`, which sends the results to the model."""
    async with running(ADD_AND_HANG, Say("fine")) as (engine, _):
        session = engine.session("s:m", tools=TOOLS)
        await cut_short(session.send("go"), session.cancel)
        late = ids(session, 1)[1]
        with pytest.raises(CallboardError, match=rf"{late} already has a result, 'This tool call was") as e:
            await session.submit({late: "too late"})
        assert "submit({})" in str(e.value)
        assert (await session.submit({})).text == "fine"
        assert asked(engine) == [[("3", False), (INTERRUPTED, True)]]


async def test_an_answer_to_a_reply_that_was_cut_off_is_refused_with_the_reason() -> None:
    script = [Say("a", calls=[("pay", {"euros": 1})], fails=StreamError("cut")), Say(calls=[("ask", {})])]
    async with talking(*script, Say("fine"), tools=TOOLS) as (session, _):
        with pytest.raises(StreamError):
            await session.stream("go").message()
        cut = ids(session, 1)[0]
        with pytest.raises(CallboardError, match=rf"The reply that has {cut} was cut off"):
            await session.submit({cut: Approved()})
        await session.send("go on")
        left = ids(session, 3)[0]
        await session.send("never mind")
        with pytest.raises(CallboardError, match=rf"Messages followed {left}"):
            await session.submit({left: "42"})


async def test_a_cancelled_submit_keeps_the_answers_and_the_other_open_calls() -> None:
    """The answer of the host is kept. The approved call was interrupted. The third call still waits."""

    @tool(needs_approval=True)
    async def slow() -> None:
        """Never ends."""
        await anyio.sleep_forever()

    calls = [("pay", {"euros": 5}), ("slow", {}), ("ask", {})]
    async with running(Say(calls=calls), Say("done")) as (engine, _):  # type: ignore[arg-type]
        session = engine.session("s:m", tools=[pay, slow, ASK])
        await session.send("go")
        paying, slowly, asking = ids(session, 1)
        await cut_short(session.submit({asking: "42", slowly: Approved()}), session.cancel)
        assert results(session.messages[-1]) == [(INTERRUPTED, True), ("42", False)]
        assert [call.id for call in session.pending_calls] == [paying]
        assert (await session.submit({paying: Approved()})).text == "done"


async def test_a_round_that_ended_with_the_engine_stays_ended_after_a_restart(tmp_path: Path) -> None:
    """The stored history has the same content as the history in memory. No call waits, and no tool runs again."""
    path = tmp_path / "trace.db"
    models = registry(ADD_AND_HANG, Say("fine"))
    async with keeping(path, models=models) as engine:
        session = engine.session("s:m", tools=TOOLS, session_id="ses_1")
        error = await cut_short(session.send("go"), engine.aclose)
        assert isinstance(error, CancelledError)
        held = session.messages
        assert results(held[-1]) == [("3", False), (INTERRUPTED, True)]
    async with keeping(path, models=models) as engine:
        session = await engine.resume("ses_1", tools=TOOLS)
        assert [message.content for message in session.messages] == [message.content for message in held]
        assert session.pending_calls == ()
        with pytest.raises(CallboardError, match="already has a result"):
            await session.submit({ids(session, 1)[1]: "too late"})
        assert (await session.send("so?")).text == "fine"
        assert asked(engine) == [[("3", False), (INTERRUPTED, True)]]
    assert ran == ["add", "hang"]


# Calls of a reply that ended badly are not run, and don't wait.

BAD = [reason for reason in StopReason if not ended_well(reason)]
SCRIPTED = [reason for reason in BAD if reason not in (StopReason.CANCELLED, StopReason.ERROR)]


@tool
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    ran.append(disk)
    return "wiped"


def ended(reason: StopReason, *names: str) -> Say:
    """A reply that calls these tools and has this stop reason."""
    say = Say("Well", calls=[(name, {"disk": "sda"}) for name in names])
    say.reply = msgspec.structs.replace(say.reply, stop=reason)
    return say


def test_three_stop_reasons_count_as_good_ends() -> None:
    assert {reason for reason in StopReason if ended_well(reason)} == {
        StopReason.TOOL_USE,
        StopReason.END_TURN,
        StopReason.PAUSE_TURN,
    }


@pytest.mark.parametrize("reason", list(StopReason), ids=str)
def test_settling_calls_twice_changes_nothing(reason: StopReason) -> None:
    """An incomplete call stays incomplete. Settled content is returned as the same object."""
    calls = (ToolUseBlock("tu_1", "wipe", {}), ToolUseBlock("tu_2", "wipe", {}, incomplete=True))
    settled = with_whole_calls(calls, reason)
    assert [call.incomplete for call in settled if isinstance(call, ToolUseBlock)] == [
        not ended_well(reason),
        True,
    ]
    assert with_whole_calls(settled, reason) is settled


@pytest.mark.parametrize("reason", [reason for reason in SCRIPTED if reason is not StopReason.MAX_TOKENS], ids=str)
async def test_the_turn_ends_and_each_call_is_marked_as_not_executed(reason: StopReason) -> None:
    """The engine sends no further request by itself. The next turn sends the error results to the model."""
    async with talking(ended(reason, "wipe", "ask"), Say("fine"), tools=[wipe, ASK]) as (session, _):
        message = await session.send("go")
        assert (message.text, session.pending_calls, ran) == ("Well", (), [])
        results = [block for block in session.messages[-1].content if isinstance(block, ToolResultBlock)]
        assert [(result.content, result.is_error) for result in results] == [(NOT_EXECUTED, True)] * 2
        assert (await session.send("and now?")).text == "fine"


@pytest.mark.parametrize(("reason", "runs"), [(StopReason.MAX_TOKENS, []), (StopReason.PAUSE_TURN, ["sda"])])
async def test_the_turn_continues_after_a_token_limit_and_a_pause(reason: StopReason, runs: list[str]) -> None:
    """At the limit the model gets an error result, because a shorter call may fit. A paused call runs."""
    async with talking(ended(reason, "wipe"), Say("fine"), tools=[wipe]) as (session, _):
        assert (await session.send("go")).text == "fine"
        assert ran == runs


async def test_calls_in_a_bad_reply_of_middleware_are_not_run() -> None:
    async def filtered(request: CanonicalRequest, next: Next) -> CallOutcome:
        outcome = await next(request)
        response = msgspec.structs.replace(outcome.response, stop_reason=StopReason.CONTENT_FILTER)
        return CallOutcome(response=response, cost=outcome.cost)

    async with running(Say(calls=[("wipe", {"disk": "sda"})]), middleware=[filtered]) as (engine, _):
        message = await engine.session("s:m", tools=[wipe]).send("go")
        assert [call.incomplete for call in message.tool_uses] == [True]
        assert ran == []


@pytest.mark.parametrize("reason", BAD, ids=str)
def test_a_stored_reply_that_ended_badly_has_no_open_calls(reason: StopReason) -> None:
    metadata = MessageMetadata(
        provider="s", model="s:m", usage=TokenUsage(1, 1), cost=Cost(0, CostSource.COMPUTED), stop_reason=reason
    )
    asked = Message(Role.ASSISTANT, (ToolUseBlock("tu_1", "ask", {}),), metadata=metadata)
    assert open_calls([Message.user("go"), asked]) == ()

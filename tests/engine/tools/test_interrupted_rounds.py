"""A turn that ends while its tools run: finished results are kept, and no tool runs again."""

from __future__ import annotations

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
    """Never ends, unless it is told."""
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
    """The results in the last request that the scripted adapter got."""
    return [results(message) for message in requests_of(engine)[-1].messages if message.role is Role.TOOL]


def ids(session: Session, reply: int) -> list[str]:
    return [call.id for call in session.messages[reply].tool_uses]


async def cut_short(turn: Awaitable[Any], end: Callable[[], Awaitable[object]]) -> CallboardError:
    """What a turn raises that is ended a second after it began."""
    async with anyio.create_task_group() as group:

        async def later() -> None:
            await anyio.sleep(1)
            await end()

        group.start_soon(later)
        with pytest.raises(CallboardError) as caught:
            await turn
    return caught.value


async def test_finished_results_are_kept_and_the_others_say_that_they_were_cancelled() -> None:
    """The model learns with the next turn what was done and what wasn't, and no tool runs again for it."""
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


async def test_every_tool_that_was_told_to_start_is_told_to_end() -> None:
    """A reader that shows what runs is left with nothing that runs; the turn's end comes last, as cancelled."""
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


async def test_a_turn_out_of_time_keeps_what_its_tools_did() -> None:
    """As one that is cancelled, also of a function in a thread."""
    say = Say(calls=[("hang_in_thread", {}), ("add", {"a": 1, "b": 2})])
    async with talking(say, Say("fine"), tools=[add, hang_in_thread]) as (session, _):
        with pytest.raises(RequestTimeoutError, match="longer than 5 s"):
            await session.send("go", timeout=5)
        assert results(session.messages[-1]) == [(INTERRUPTED, True), ("3", False)]
        assert (await session.send("so?")).text == "fine"


async def test_what_had_not_begun_was_not_executed() -> None:
    """Calls that wait, for an approval or for somebody's answer, end with the turn that asked for them."""
    calls = [("hang", {}), ("pay", {"euros": 5}), ("ask", {})]
    async with running(Say(calls=calls)) as (engine, _):  # type: ignore[arg-type]
        session = engine.session("s:m", tools=TOOLS)
        await cut_short(session.send("go"), session.cancel)
        assert results(session.messages[-1]) == [(INTERRUPTED, True), (NOT_EXECUTED, True), (NOT_EXECUTED, True)]
        assert session.pending_calls == ()
        assert ran == ["hang"]


async def test_a_tool_or_whoever_approves_may_cancel_the_turn() -> None:
    """What it gives back still counts; what it leaves open doesn't wait."""
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


async def test_an_answer_that_comes_too_late_is_refused_with_what_became_of_the_call() -> None:
    """It says how to go on, and an empty submit does: the model gets the results as they are."""
    async with running(ADD_AND_HANG, Say("fine")) as (engine, _):
        session = engine.session("s:m", tools=TOOLS)
        await cut_short(session.send("go"), session.cancel)
        late = ids(session, 1)[1]
        with pytest.raises(
            CallboardError, match=rf"{late} already has a result, 'This tool call was cancelled"
        ) as e:
            await session.submit({late: "too late"})
        assert "submit({})" in str(e.value)
        assert (await session.submit({})).text == "fine"
        assert asked(engine) == [[("3", False), (INTERRUPTED, True)]]


async def test_an_answer_to_a_reply_that_was_cut_off_is_refused_with_the_reason() -> None:
    """Also to a call that something was said after."""
    script = [Say("a", calls=[("pay", {"euros": 1})], fails=StreamError("cut")), Say(calls=[("ask", {})])]
    async with talking(*script, Say("fine"), tools=TOOLS) as (session, _):
        with pytest.raises(StreamError):
            async with session.stream("go") as turn:
                await turn.message()
        cut = ids(session, 1)[0]
        with pytest.raises(CallboardError, match=rf"The reply that has {cut} was cut off"):
            await session.submit({cut: Approved()})
        await session.send("go on")
        left = ids(session, 3)[0]
        await session.send("never mind")
        with pytest.raises(CallboardError, match=rf"Messages followed {left}"):
            await session.submit({left: "42"})


async def test_a_cancelled_submit_keeps_the_answers_and_leaves_open_what_it_was_not_about() -> None:
    """What the host has said is not lost, what it approved was interrupted, and the rest waits on."""

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


async def test_a_round_that_an_engine_was_closed_under_is_over_after_a_restart(tmp_path: Path) -> None:
    """The history that is stored is the one that was held: nothing waits, and nothing runs again."""
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


# Calls of a reply that did not end well: nobody runs them, and nothing waits for them.

BAD = [reason for reason in StopReason if not ended_well(reason)]
SCRIPTED = [reason for reason in BAD if reason not in (StopReason.CANCELLED, StopReason.ERROR)]


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
async def test_the_turn_is_over_and_each_call_says_that_it_was_not_executed(reason: StopReason) -> None:
    """The model is not asked again by itself; with the next turn it learns what did not happen."""
    async with talking(ended(reason, "wipe", "ask"), Say("fine"), tools=[wipe, ASK]) as (session, _):
        message = await session.send("go")
        assert (message.text, session.pending_calls, ran) == ("Well", (), [])
        results = [block for block in session.messages[-1].content if isinstance(block, ToolResultBlock)]
        assert [(result.content, result.is_error) for result in results] == [(NOT_EXECUTED, True)] * 2
        assert (await session.send("and now?")).text == "fine"


async def test_at_the_limit_of_tokens_the_model_is_told() -> None:
    """A shorter call may fit; whole arguments are no reason to run the call."""
    async with talking(ended(StopReason.MAX_TOKENS, "wipe"), Say("fine"), tools=[wipe]) as (session, _):
        assert (await session.send("go")).text == "fine"
        assert ran == []


async def test_a_pause_with_calls_runs_them() -> None:
    """The reply goes on with their results."""
    async with talking(ended(StopReason.PAUSE_TURN, "wipe"), Say("fine"), tools=[wipe]) as (session, _):
        assert (await session.send("go")).text == "fine"
        assert ran == ["sda"]


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

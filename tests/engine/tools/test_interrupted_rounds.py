"""A turn that is ended while its tools run: what was done is kept, and nothing of it waits or runs again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.adapters import Message, RequestTimeoutError, Role, ToolDefinition, ToolResultBlock
from callboard.adapters.requests.history import NOT_EXECUTED
from callboard.bus import CallboardError, CancelledError, StreamError, ToolFinished, ToolStarted, TurnComplete
from callboard.bus.streams.events import TurnEvent
from callboard.bus.values.base import JsonObject
from callboard.engine import ApprovalRequest, Approved, Engine, Pending, Session, Tool, ToolContext, tool
from callboard.engine.tools.running import INTERRUPTED
from tests.support.engines import keeping, registry, requests_of, running, talking
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio

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
            CallboardError, match=rf"{late} has a result already, 'This tool call was cancelled"
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
        with pytest.raises(CallboardError, match=rf"Something was said since {left}"):
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
        with pytest.raises(CallboardError, match="has a result already"):
            await session.submit({ids(session, 1)[1]: "too late"})
        assert (await session.send("so?")).text == "fine"
        assert asked(engine) == [[("3", False), (INTERRUPTED, True)]]
    assert ran == ["add", "hang"]

"""The thread or task in which a tool runs, results and errors of tools, and turns with rounds of tools."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pydantic
import pytest

from callboard.adapters import ImageBlock, Message, Role, ServerError, TextBlock, ToolDefinition, ToolResultBlock
from callboard.bus import CallboardError, CancelledError, ToolFinished, ToolProgress, ToolStarted, TurnComplete
from callboard.engine import (
    AbortSignal,
    Approved,
    Denied,
    Pending,
    Session,
    StepResult,
    Tool,
    ToolContext,
    ToolError,
    tool,
)
from callboard.engine.tools import running as threads

from ...definition_of_done.rows import row
from ...support.engines import requests_of, running, talking, topics
from ...support.present import present
from ...support.programs import ended
from ...support.scripted import Say
from .rounds import Told, call, result_of, run

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO")

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 8


async def test_a_plain_function_runs_in_a_thread_with_the_callers_context() -> None:
    WHO.set("me")
    released = threading.Event()

    @tool
    def wait() -> str:
        assert threading.current_thread().daemon
        assert released.wait(10)
        return WHO.get()

    asyncio.get_running_loop().call_soon(released.set)
    assert (await result_of(wait)).text == "me"


async def test_a_plain_function_can_run_its_own_event_loop() -> None:
    """The thread of a tool has no loop. Twenty calls in a row use at most two threads."""

    @tool
    def nested() -> int:
        async def inner() -> int:
            await anyio.lowlevel.checkpoint()
            return threading.get_ident()

        return anyio.run(inner)

    used = {(await result_of(nested)).text for _ in range(20)}
    assert 1 <= len(used) <= 2
    assert str(threading.get_ident()) not in used


async def test_a_thread_past_its_timeout_gets_the_signal_and_its_result_is_dropped() -> None:
    heard = threading.Event()
    over = threading.Event()

    @tool(timeout=0.01)
    def slow(context: ToolContext) -> str:
        try:
            assert context.abort_signal.wait_in_thread(10)
            assert context.cancelled
            context.progress("too late")
            with pytest.raises(CancelledError, match="longer than"):
                context.raise_if_cancelled()
            heard.set()
            return "too late"
        finally:
            over.set()

    events: Told = []
    result = await result_of(slow, told=events)
    assert "longer than 0.01 s" in result.text
    assert await anyio.to_thread.run_sync(over.wait, 10)
    await anyio.lowlevel.checkpoint()
    assert heard.is_set()
    assert [type(event) for event in events] == [ToolStarted, ToolFinished]


PROGRAM = """
import asyncio, threading
from callboard import tool
from tests.engine.tools.rounds import result_of

@tool(timeout=0.01)
def hang() -> None:
    threading.Event().wait()

print(asyncio.run(result_of(hang)).text)
"""


def test_a_thread_that_hangs_does_not_keep_the_program_from_ending() -> None:
    """The process ends while its tool still runs."""
    assert "longer than 0.01 s" in ended(PROGRAM).stdout


async def test_cancelling_the_round_sets_every_signal() -> None:
    """An async tool is cancelled. A plain tool sees its abort signal."""
    heard = threading.Event()
    running = anyio.Event()
    cancelled: list[str] = []
    loop = asyncio.get_running_loop()

    @tool
    def plain(abort_signal: AbortSignal) -> None:
        loop.call_soon_threadsafe(running.set)
        if abort_signal.wait_in_thread(10):
            heard.set()

    @tool
    async def other() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("other")

    calls = asyncio.ensure_future(run([call("plain"), call("other", tool_use_id="tu_2")], [plain, other]))
    await running.wait()
    calls.cancel()
    await asyncio.wait([calls])
    assert await anyio.to_thread.run_sync(heard.wait, 10)
    assert cancelled == ["other"]


async def test_the_context_has_the_ids_and_messages_of_the_call() -> None:
    """The parameters `messages` and `tool_call_id` get the same values."""
    seen: list[object] = []
    messages_ = (Message.user("Hi"),)

    @tool
    async def look(context: ToolContext, messages: tuple[Message, ...], tool_call_id: str) -> None:
        seen.extend([context.session_id, context.turn_id, context.tool_name, context.tool_call_id])
        seen.extend([context.messages, messages, tool_call_id])

    await result_of(look, session_id="ses_1", turn_id="trn_1", messages=messages_)
    assert seen == ["ses_1", "trn_1", "look", "tu_1", messages_, messages_, "tu_1"]


@pytest.mark.parametrize("plain", [True, False])
async def test_progress_events_come_between_start_and_end(plain: bool) -> None:
    """The events keep their order, from a thread and from the loop."""

    def work(context: ToolContext) -> str:
        context.progress("half", 0.5)
        context.progress(fraction=1)
        return "done"

    async def work_async(context: ToolContext) -> str:
        return work(context)

    events: Told = []
    await result_of(tool(work if plain else work_async, name="work"), told=events)
    assert [type(event) for event in events] == [ToolStarted, ToolProgress, ToolProgress, ToolFinished]
    assert events[1] == ToolProgress(tool_use_id="tu_1", tool_name="work", message="half", fraction=0.5)


# -- what goes wrong


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("too big"), "ValueError: too big"),
        (KeyError(), "KeyError"),
        (TimeoutError("of the database"), "TimeoutError: of the database"),
        (ToolError("There is no such city."), "There is no such city."),
        (SystemExit(3), "RuntimeError: the "),
        (asyncio.CancelledError(), "RuntimeError: the "),
    ],
)
async def test_an_exception_of_a_tool_is_an_error_for_the_model(
    asynchronous: bool, error: BaseException, told: str
) -> None:
    """SystemExit and CancelledError of a tool don't end the loop or the turn."""

    def fails() -> object:
        raise error

    async def fails_async() -> object:
        raise error

    result = await result_of(tool(fails_async if asynchronous else fails, name="fails"))
    assert result.is_error
    assert result.text.startswith(told)


async def test_one_bad_tool_does_not_touch_the_others() -> None:
    """8.7: every call has a result, in the order of the calls."""

    @tool
    async def fine(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return n

    @tool
    async def bad() -> None:
        raise RuntimeError("no")

    calls = [call("fine", {"n": 1}, tool_use_id="a"), call("bad", tool_use_id="b"), call("none", tool_use_id="c")]
    made = await run([*calls, call("fine", {"n": 2}, tool_use_id="d")], [fine, bad])
    assert [f"{r.tool_use_id} {r.is_error}" for r in made.results] == ["a False", "b True", "c True", "d False"]
    assert "There is no tool named 'none'. Available tools: fine, bad." in made.results[2].text


# -- results


@dataclass
class Point:
    x: int


class Row(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    day: date


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": [1, 2.5, True]}, '{"a":[1,2.5,true]}'),
        (Point(1), '{"x":1}'),
        ([Row(2)], '[{"x":2}]'),
        (Model(day=date(2026, 1, 2)), '{"day":"2026-01-02"}'),
        ({"rows": (Model(day=date(2026, 1, 2)),)}, '{"rows":[{"day":"2026-01-02"}]}'),
        (Decimal("1.5"), '"1.5"'),
    ],
)
async def test_results_become_text(value: Any, text: str) -> None:
    result = await result_of(Tool(ToolDefinition("give"), lambda arguments: value))
    assert (result.content, result.is_error) == (text, False)


async def test_results_can_be_blocks() -> None:
    async def given(value: Any) -> ToolResultBlock:
        return await result_of(Tool(ToolDefinition("give"), lambda arguments: value))

    image = ImageBlock(data=PNG)
    assert (await given(image)).content == (image,)
    assert (await given(["see", image, {"n": 1}])).content == (TextBlock("see"), image, TextBlock('{"n":1}'))
    for value, advice in ((b"123", "ImageBlock(data"), (object(), "return text, a JSON value")):
        result = await given(value)
        assert (result.is_error, advice in result.text) == (True, True)


async def test_idle_threads_end_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.001)
    ended = await threads.run_in_thread(threading.current_thread)
    await anyio.to_thread.run_sync(ended.join, 10)
    assert not ended.is_alive()
    assert await threads.run_in_thread(lambda: 1) == 1


# Turns that run tools, wait for answers, and continue.


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(needs_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


ASK = Tool(ToolDefinition("ask", "Asks a person."))

BOTH = Say(calls=[("add", {"a": 1, "b": 2}), ("pay", {"euros": 5}), ("ask", {})])


def results(message: Message) -> list[tuple[str, bool]]:
    return [(block.text, block.is_error) for block in message.content if isinstance(block, ToolResultBlock)]


def everything(folder: Path) -> str:
    """The text of all files in a folder."""
    return "".join(each.read_bytes().decode("latin-1") for each in folder.iterdir())


def pending(session: Session) -> dict[str, str]:
    """The ids of the open calls by the names of their tools."""
    return {call.name: call.id for call in session.pending_calls}


async def test_active_calls_run_and_the_others_stay_open() -> None:
    """8.7: a call with a handler runs. A passive call and one without approval wait, and the turn ends."""
    async with talking(BOTH, tools=[add, pay, ASK]) as (session, events):
        message = await session.send("go")
        assert len(message.tool_uses) == 3
        assert [m.role for m in session.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]
        assert results(session.messages[2]) == [("3", False)]
        assert [call.name for call in session.pending_calls] == ["pay", "ask"]
        completed = [e.data for e in events.take() if e.topic == "session.turn_completed"]
        assert completed[0].status == "awaiting_tools"  # type: ignore[attr-defined]


async def test_submitted_answers_continue_the_turn() -> None:
    """8.7: approved calls run, submitted results are kept, and the next request has all results."""
    async with running(BOTH, Say("done")) as (engine, events):
        session = engine.session("s:m", tools=[add, pay, ASK])
        await session.send("go")
        open_ = pending(session)
        events.take()
        message = await session.submit({open_["ask"]: {"age": 7}, open_["pay"]: Approved()})
        assert message.text == "done"
        assert session.pending_calls == ()
        assert results(session.messages[3]) == [("paid 5", False), ('{"age":7}', False)], "the calls' order"
        sent = [results(m) for m in requests_of(engine)[1].messages if m.role is Role.TOOL]
        assert sum(len(each) for each in sent) == 3
        assert topics(events.take(), "tool.") == ["tool.started", "tool.finished"], "only the approved call runs"


async def test_some_answers_leave_the_rest_open() -> None:
    """The engine sends no request before all calls have an answer."""
    async with running(BOTH, Say("done")) as (engine, _):
        session = engine.session("s:m", tools=[add, pay, ASK])
        asked = await session.send("go")
        open_ = pending(session)
        again = await session.submit({open_["pay"]: Denied("too much")})
        assert again == asked
        assert list(pending(session)) == ["ask"]
        assert len(requests_of(engine)) == 1
        assert (await session.submit({open_["ask"]: ToolError("nobody is here")})).text == "done"
        assert results(session.messages[3]) == [("The call was not approved: too much", True)]
        assert results(session.messages[4]) == [("nobody is here", True)]


@pytest.mark.parametrize("streamed", [False, True])
async def test_calls_are_approved_and_denied_as_they_were_shown(streamed: bool) -> None:
    """The host passes the call itself. The model is called when all calls have an answer."""
    both = Say(calls=[("pay", {"euros": 5}), ("pay", {"euros": 500})])
    async with talking(both, Say("do", "ne"), tools=[pay]) as (session, _):
        await session.send("go")
        little, much = session.pending_calls
        if streamed:
            async with session.deny_stream(much, why="too much") as turn:
                assert (await turn.message()).text == ""
            async with session.approve_stream(little) as turn:
                assert [text async for text in turn.text_stream] == ["do", "ne"]
        else:
            await session.deny(much, why="too much")
            assert (await session.approve(little)).text == "done"
        answers = [each for message in session.messages[2:4] for each in results(message)]
        assert answers == [("The call was not approved: too much", True), ("paid 5", False)]
        with pytest.raises(CallboardError, match="is not waiting for an answer"):
            session.approve_stream(little)


async def test_an_approval_without_the_waiting_call_is_refused() -> None:
    """No call, a call with other arguments, and a call that is already answered are refused, and nothing runs."""
    async with talking(Say(calls=[("pay", {"euros": 5})]), Say("done"), tools=[pay]) as (session, _):
        await session.send("go")
        (waiting,) = session.pending_calls
        with pytest.raises(ValueError, match=r"session\.pending_calls"):
            await session.approve()
        with pytest.raises(CallboardError, match="is waiting with other arguments now"):
            await session.approve(msgspec.structs.replace(waiting, input={"euros": 1}))
        assert session.pending_calls == (waiting,)
        await session.approve(waiting)
        with pytest.raises(CallboardError, match="is not waiting for an answer"):
            await session.deny(waiting)


async def test_a_turn_can_replace_the_approval_hook_of_its_session() -> None:
    """`approve=` of `send` replaces the hook of the session. A new message ends the waiting calls."""
    calls = Say(calls=[("add", {"a": 1, "b": 1})])
    async with talking(
        calls, Say("one"), calls, Say("fine"), tools=[add], approve=lambda _: Denied("no sums")
    ) as (session, _):
        await session.send("go")
        assert results(session.messages[2]) == [("The call was not approved: no sums", True)]
        await session.send("go", approve=lambda request: Pending())
        assert list(pending(session)) == ["add"]
        assert (await session.send("never mind")).text == "fine"
        assert session.pending_calls == ()


async def test_continuing_after_a_failure_repeats_no_tool() -> None:
    """The results were kept when the next call failed. An empty submit continues the turn."""
    ran: list[int] = []

    @tool(needs_approval=True)
    async def once(n: int) -> int:
        ran.append(n)
        return n

    script = [Say(calls=[("once", {"n": 1})]), Say(fails=ServerError("down")), Say("up again")]
    async with talking(*script, tools=[once]) as (session, _):
        await session.send("go")
        with pytest.raises(ServerError):
            await session.submit({pending(session)["once"]: Approved()})
        assert session.pending_calls == ()
        assert (await session.submit({})).text == "up again"
        assert ran == [1]


async def test_wrong_answers_are_refused_with_the_open_calls() -> None:
    """The error comes before any tool runs, and has advice."""
    async with talking(BOTH, tools=[add, pay, ASK]) as (session, _):
        with pytest.raises(CallboardError, match=r"Use send\(\)"):
            await session.submit({})
        await session.send("go")
        open_ = pending(session)
        with pytest.raises(CallboardError, match=rf"id tu_x. Open calls: {open_['pay']} \(pay\)"):
            await session.submit({"tu_x": "?", open_["pay"]: Approved()})
        with pytest.raises(CallboardError, match="no call was answered"):
            await session.submit({})
        with pytest.raises(CallboardError, match=r"'ask' has no handler.*Submit its result"):
            await session.submit({open_["ask"]: Approved(), open_["pay"]: Approved()})
        with pytest.raises(CallboardError, match="return text, a JSON value"):
            await session.submit({open_["ask"]: object()})
        assert len(session.pending_calls) == 2, "no tool must have run"


# -- rounds


def again(times: int) -> list[Say]:
    return [Say(calls=[("add", {"a": n, "b": 1})]) for n in range(times)]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_condition_ends_the_turn_after_a_round(asynchronous: bool) -> None:
    """8.7: the condition gets the steps with the results of their tools. The results stay in the history."""
    seen: list[int] = []

    def enough(steps: Sequence[StepResult]) -> bool:
        seen.append(len(steps))
        return steps[-1].tool_results[0].text == "2"

    async def enough_async(steps: Sequence[StepResult]) -> bool:
        return enough(steps)

    async with talking(*again(4), tools=[add]) as (session, _):
        stop_when = enough_async if asynchronous else enough
        async with session.stream("go", max_tool_rounds=10, stop_when=stop_when) as turn:
            events = [event async for event in turn]
        assert seen == [1, 2]
        assert events[-1] == TurnComplete("stopped")
        assert results(session.messages[-1]) == [("2", False)]


async def test_a_condition_that_raises_fails_the_turn() -> None:
    """The error names `stop_when`."""
    async with talking(*again(1), tools=[add]) as (session, _):
        with pytest.raises(CallboardError, match="stop_when failed: ZeroDivisionError"):
            await session.send("go", stop_when=lambda steps: bool(1 / 0))


@pytest.mark.parametrize(("rounds", "calls"), [(0, 1), (1, 2), (3, 4)])
@row("8.7.3")
@row("8.7.4")
async def test_rounds_are_limited(rounds: int, calls: int) -> None:
    """8.7: N rounds are at most N + 1 calls. With 0 rounds no tool runs, and the calls stay open."""
    async with running(*again(5)) as (engine, _):
        session = engine.session("s:m", tools=[add])
        async with session.stream("go", max_tool_rounds=rounds) as turn:
            events = [event async for event in turn]
        assert events[-1] == TurnComplete("max_tool_rounds")
        assert len(requests_of(engine)) == calls
        assert list(pending(session)) == ["add"]


async def test_progress_text_is_in_the_stream_and_on_the_bus_but_is_not_stored(tmp_path: Path) -> None:
    """The text may quote content. The trace keeps the progress event with its fraction."""

    @tool
    async def slow(context: ToolContext) -> str:
        context.progress("reading the secret diary", 0.5)
        return context.session_id or ""

    path = tmp_path / "trace.db"
    async with running(Say(calls=[("slow", {})]), Say("ok"), store=path) as (engine, events):
        async with engine.session("s:m", tools=[slow], session_id="ses_1").stream("go") as turn:
            streamed = [event async for event in turn if isinstance(event, ToolProgress)]
        assert [event.message for event in streamed] == ["reading the secret diary"]
        assert [e.data for e in events.take() if e.topic == "tool.progress"] == streamed
        await engine.flush()
        stored = await present(engine.store).events(topic="tool.progress")
    assert [e.data.fraction for e in stored] == [0.5]  # type: ignore[attr-defined]
    assert "secret diary" not in everything(tmp_path)

"""Parts of an engine that fail, are cancelled, restarted, or end late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import anyio.lowlevel
import pytest

from callboard import ActorStopped, DropOldest
from callboard.adapters import (
    AdapterError,
    AttemptFailed,
    AttemptObserver,
    AttemptStarted,
    CancelledError,
    CanonicalRequest,
    MessageComplete,
    MessageStart,
    NetworkError,
    StopReason,
    ToolDefinition,
    ToolUseBlock,
)
from callboard.adapters.http.stream import HttpStream
from callboard.adapters.requests.history import NOT_EXECUTED
from callboard.bus import (
    CallboardError,
    Json,
    Lossless,
    StepFinish,
    StreamEvent,
    StreamReset,
    TurnComplete,
    TurnEvent,
)
from callboard.engine import Engine, Session, Tool
from tests.support.depth import first_is_quick

from ..support.engines import running, said, serving
from ..support.invariants import check_stream
from ..support.present import present
from ..support.scripted import Say, ScriptedAdapter
from ..support.virtual_time import run_virtual
from .toy_engines import TOOLS, check_closed, check_ends, toy_engine

pytestmark = pytest.mark.anyio


# Turns during the restart of a part of the engine.


async def test_the_next_turn_uses_the_restarted_adapter() -> None:
    async with running(Say("never", pause=anyio.sleep_forever), Say("fresh")) as (engine, events):
        first, second = engine.session("s:m"), engine.session("s:m")
        sending = asyncio.create_task(first.send("Hi"))
        await anyio.sleep(1)
        engine._runtime.adapters.running["s"].ref.tell("no adapter understands this")
        with pytest.raises(AdapterError, match="actor stopped"):
            await sending
        assert not engine._runtime.adapters.running["s"].ref.running
        assert (await second.send("Hi")).text == "fresh"
        assert check_ends(events.take()) == 2


async def test_the_next_turn_uses_the_restarted_session_manager() -> None:
    """A crash of the manager ends its turns. The histories stay, and a new turn waits for the restart."""
    async with running(Say("one"), Say("never", pause=anyio.sleep_forever), Say("two")) as (engine, events):
        session = engine.session("s:m")
        await session.send("Hi")
        sending = asyncio.create_task(session.send("Hi"))
        await anyio.sleep(1)
        manager = (await engine._host.running_life()).manager
        manager.tell("no manager understands this")
        with pytest.raises(CancelledError, match="session manager stopped"):
            await sending
        assert not manager.running
        assert (await session.send("Hi")).text == "two"
        assert [message.text for message in session.messages] == ["Hi", "one", "Hi", "two"]
        assert check_ends(events.take()) == 3


async def test_a_turn_without_a_session_manager_fails() -> None:
    """If the manager has stopped for good, a turn fails and leaves no waiting turn and no open stream."""
    async with running(Say("one")) as (engine, _):
        session = engine.session("s:m")
        await session.send("Hi")
        manager = (await engine._host.running_life()).manager
        manager._close()  # as its supervisor does at the end
        assert manager._life is not None
        manager._life.phase = "ended"
        with pytest.raises(ActorStopped):
            await session.send("Hi")
        assert _waiting(session) == 0
        assert engine.streams.statistics().open == 0
        manager._life.phase = "running"


def _waiting(session: Session) -> int:
    return session._state.waiting


# One turn with a retry and a round of tools, which is ended after each possible number of steps of the event loop.


Ending: TypeAlias = Callable[[Engine, Session, anyio.CancelScope], Awaitable[None]]
MOST_STEPS = 400


async def host_cancelled(engine: Engine, session: Session, host: anyio.CancelScope) -> None:
    host.cancel()


async def session_cancelled(engine: Engine, session: Session, host: anyio.CancelScope) -> None:
    await session.cancel()
    await session.cancel()


async def adapter_crashed(engine: Engine, session: Session, host: anyio.CancelScope) -> None:
    running = engine._runtime.adapters.running.get("toy")
    if running is not None:
        running.ref.tell("no adapter understands this")


async def manager_crashed(engine: Engine, session: Session, host: anyio.CancelScope) -> None:
    (await engine._host.running_life()).manager.tell("no manager understands this")


async def engine_closed(engine: Engine, session: Session, host: anyio.CancelScope) -> None:
    await engine.aclose()


def check_messages(events: list[TurnEvent]) -> None:
    """Check that every message of a turn's stream keeps the invariants, and that the turn's end comes last."""
    assert isinstance(events[-1], TurnComplete)
    assert not [event for event in events[:-1] if isinstance(event, TurnComplete)]
    messages: dict[str, list[StreamEvent]] = {}
    for event in events:
        message_id = getattr(event, "message_id", None)
        if message_id is not None and not isinstance(event, StepFinish):
            messages.setdefault(message_id, []).append(event)  # type: ignore[arg-type]
    for message in messages.values():
        check_stream(message)


async def once(steps: int, streamed: bool, end: Ending) -> bool:
    """Run the turn and end it after this number of steps of the loop. True if the turn was over before."""
    engine, events, made = toy_engine()
    with anyio.fail_after(60):
        await engine.start()
        session = engine.session("toy:m", tools=TOOLS)
        over = False
        seen: list[TurnEvent] = []
        with anyio.CancelScope() as host:
            async with anyio.create_task_group() as tasks:

                async def hurry() -> None:
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    if not over:
                        await end(engine, session, host)

                tasks.start_soon(hurry)
                with contextlib.suppress(CallboardError):
                    if streamed:
                        async with session.stream("Hi") as turn:
                            late = engine.attach(turn.stream_id)
                            async for event in turn:
                                assert not isinstance(event, StreamReset)
                                seen.append(event)
                    else:
                        await session.send("Hi")
                over = not host.cancel_called
                if over:
                    tasks.cancel_scope.cancel()
        finished = over and bool(session.messages) and session.messages[-1].text == "Hello ☃"
        if seen:
            with anyio.fail_after(10):
                everything = [event async for event in late]
            check_messages(everything)  # type: ignore[arg-type]
            assert seen == everything[: len(seen)]
        if end is not engine_closed:
            for attempt in range(3):  # a restart takes some seconds
                with contextlib.suppress(CallboardError):
                    await session.send("And now?")
                    break
                await anyio.sleep(1 + attempt)
            assert session.messages[-1].text in ("Hello ☃",)
        await check_closed(engine, made)
    assert check_ends(events.take()) >= (0 if end is engine_closed else 1)
    return finished


@pytest.mark.parametrize("streamed", first_is_quick([True, False], "whole replies"), ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "end", [host_cancelled, session_cancelled, adapter_crashed, manager_crashed, engine_closed]
)
def test_a_turn_can_end_at_any_await(end: Ending, streamed: bool) -> None:
    """The turn does not hang, each attempt has one end, and the stream is valid. No task and no reply is left, and
    the next turn works.
    """
    for steps in range(MOST_STEPS):
        if run_virtual(lambda steps=steps: once(steps, streamed, end)) and steps > 20:  # type: ignore[misc]
            return
    raise AssertionError(f"{MOST_STEPS} steps are more than the turn has")


# Adapters that ignore cancellation.


class Deaf(ScriptedAdapter):
    """An adapter that ignores `cancel()`."""

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> HttpStream:
        assert on_attempt is not None
        self.tell = on_attempt
        return super().stream(request, on_attempt=on_attempt)

    async def cancel(self, request_id: str) -> bool:
        return False

    async def close(self) -> None:
        deaf.remove(self)


deaf: list[Deaf] = []


class DeafOnce(Deaf):
    """An adapter whose first reply never comes. When its task is killed, the adapter reports another attempt."""

    def say(self, request: CanonicalRequest) -> Say:
        deaf.append(self)

        async def stubborn() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                self.tell(AttemptFailed(1, NetworkError("said too late"), 0.1))
                self.tell(AttemptStarted(2, "retry"))

        return Say("never", pause=stubborn)


class DeafWithTool(Deaf):
    """An adapter whose reply comes after a second and calls a tool, even if the call is cancelled."""

    def say(self, request: CanonicalRequest) -> Say:
        deaf.append(self)
        return Say("let me", calls=[("act", {})], pause=lambda: anyio.sleep(0.5))


def engine_of(kind: type[Deaf]) -> Engine:
    return Engine(models=serving(deaf=f"{__name__}:{kind.__name__}"), trace=False)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_reports_of_a_killed_call_are_not_published(streamed: bool) -> None:
    """A call that ignores cancellation is killed after a grace period."""
    engine = engine_of(DeafOnce)
    events = engine.bus.subscribe("llm.*", policy=Lossless())
    async with engine:
        session = engine.session("deaf:m")
        with anyio.move_on_after(1) as limit:
            await said(session, "Hi", streamed=streamed)
        assert limit.cancelled_caught
        await anyio.sleep(1)
        taken = events.take()
        assert [envelope.topic for envelope in taken] == ["llm.call_started", "llm.call_failed"]
        assert check_ends(taken) == 1


async def test_a_cancel_that_comes_too_late_for_the_call_still_stops_its_tools() -> None:
    """If the reply comes after the cancel, the reply is kept and its tool calls are not executed."""
    ran: list[Json] = []

    async def act(arguments: Json) -> Json:
        ran.append(arguments)
        return "done"

    async with engine_of(DeafWithTool) as engine:
        session = engine.session("deaf:m", tools=[Tool(ToolDefinition("act"), act)])

        async def cancel() -> None:
            await anyio.sleep(0.7)
            await session.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            with pytest.raises(CancelledError, match="tools were not run"):
                await session.send("Hi")
        assert not ran
        assert isinstance(session.messages[-2].content[-1], ToolUseBlock)
        assert session.messages[-1].content[0].text == NOT_EXECUTED  # type: ignore[union-attr]
        assert session.pending_calls == ()


async def test_a_huge_stream_that_crashes_has_its_end() -> None:
    piece = "x" * 20_000
    async with running(Say(*[piece] * 700, fails=ZeroDivisionError("bug"))) as (engine, _):
        session = engine.session("s:m")
        with pytest.raises(AdapterError, match="crashed"):
            async with session.stream("Hi") as turn:
                await turn.message()
        assert len(session.messages[-1].text) == 700 * len(piece)
        events = [event async for event in engine.attach(turn.stream_id)]
        flat = [
            inner for event in events for inner in (event.snapshot if isinstance(event, StreamReset) else [event])
        ]
        assert isinstance(flat[0], MessageStart)
        assert isinstance(flat[-2], MessageComplete)
        assert flat[-2].stop_reason is StopReason.ERROR
        assert isinstance(flat[-1], TurnComplete)


# Observers that read badly: none slows or breaks another stream. Times are virtual, so they are exact.


Watcher: TypeAlias = Callable[[Engine], Awaitable[object]]


async def never_reads_the_bus(engine: Engine) -> None:
    with engine.bus.subscribe(">", policy=Lossless()), engine.bus.subscribe(">", policy=DropOldest(1)):
        await anyio.sleep_forever()


async def crashes_on_each_event(engine: Engine) -> None:
    for _ in range(100):
        with contextlib.suppress(ZeroDivisionError), engine.bus.subscribe("llm.*") as events:
            async for _ in events:
                raise ZeroDivisionError


async def never_reads_a_stream(engine: Engine) -> None:
    readers = []
    with engine.bus.subscribe("session.turn_started") as events:
        async for envelope in events:
            assert envelope.turn_id is not None
            readers.append(engine.attach(envelope.turn_id))


async def sleeps_in_a_stream(engine: Engine) -> None:
    async def read(stream_id: str) -> None:
        async with engine.attach(stream_id) as reader:
            async for _ in reader:
                await anyio.sleep(60)

    async with anyio.create_task_group() as group:
        with engine.bus.subscribe("session.turn_started") as events:
            async for envelope in events:
                assert envelope.turn_id is not None
                group.start_soon(read, envelope.turn_id)


@asynccontextmanager
async def watched(engine: Engine, watcher: Watcher) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(watcher, engine)
        await anyio.wait_all_tasks_blocked()
        yield
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "watcher", [never_reads_the_bus, crashes_on_each_event, never_reads_a_stream, sleeps_in_a_stream]
)
async def test_a_bad_observer_slows_no_stream(watcher: Watcher) -> None:
    def says() -> Iterator[Say]:
        for _ in range(3):
            yield Say("a", "b", "c", pause=lambda: anyio.sleep(1))

    async with running(a=list(says()), b=list(says())) as (engine, events), watched(engine, watcher):
        arrivals: dict[str, list[float]] = {}

        async def talk(name: str) -> None:
            session = engine.session(f"{name}:m")
            for _ in range(3):
                async with session.stream("Hi") as turn:
                    async for _ in turn.text_stream:
                        arrivals.setdefault(name, []).append(anyio.current_time() - started)

        started = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(talk, "a")
            group.start_soon(talk, "b")
        expected = [4 * turn + piece for turn in range(3) for piece in (1, 2, 3)]
        assert {name: [round(at, 6) for at in times] for name, times in arrivals.items()} == dict.fromkeys(
            "ab", expected
        )
        assert check_ends(events.take()) == 6
        report = await engine.aclose()
        assert present(report).clean
        assert anyio.current_time() - started <= 13, "the stop does not wait for an observer"

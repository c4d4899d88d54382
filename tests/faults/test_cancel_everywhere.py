"""One turn, with a retry and a round of tools, ended from outside one turn of the event loop later each time."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import anyio.lowlevel
import pytest

from callboard.bus import CallboardError, StepFinish, StreamEvent, StreamReset, TurnComplete, TurnEvent
from callboard.engine import Engine, Session
from tests.support.invariants import check_stream
from tests.support.virtual_time import run_virtual

from .toy_engines import TOOLS, check_closed, check_ends, toy_engine

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
    (await engine._host.living()).manager.tell("no manager understands this")


async def engine_closed(engine: Engine, session: Session, host: anyio.CancelScope) -> None:
    await engine.aclose()


def check_messages(events: list[TurnEvent]) -> None:
    """Every message of a turn's stream keeps the invariants, and the turn's end comes last."""
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
    """Run the turn and end it after so many steps of the loop; True if it was over before."""
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
            for attempt in range(3):  # a restart takes a moment
                with contextlib.suppress(CallboardError):
                    await session.send("And now?")
                    break
                await anyio.sleep(1 + attempt)
            assert session.messages[-1].text in ("Hello ☃",)
        await check_closed(engine, made)
    assert check_ends(events.take()) >= (0 if end is engine_closed else 1)
    return finished


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "end", [host_cancelled, session_cancelled, adapter_crashed, manager_crashed, engine_closed]
)
def test_a_turn_can_end_at_any_await(end: Ending, streamed: bool) -> None:
    """No hang, one end per attempt, a valid stream, no task and no reply left, and the next turn works."""
    for steps in range(MOST_STEPS):
        if run_virtual(lambda steps=steps: once(steps, streamed, end)) and steps > 20:  # type: ignore[misc]
            return
    raise AssertionError(f"{MOST_STEPS} steps are more than the turn has")

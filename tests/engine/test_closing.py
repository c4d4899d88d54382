"""An engine that is closed under whatever runs in it: callers get one kind of error, and each call has one end."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from callboard.adapters import CancelledError, StopReason
from callboard.bus import (
    CallboardError,
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Lossless,
    MessageComplete,
    TurnComplete,
)
from callboard.bus.values.usage import UsageSource
from callboard.engine import Timeouts, tool
from tests.support.present import present
from tests.support.scripted import Say, ScriptedAdapter

from .slow_engines import WAYS, Slow, an_engine

pytestmark = pytest.mark.anyio

CLOSED = "the engine was closed"


@tool
async def wait_long() -> None:
    """Takes an hour."""
    await anyio.sleep(3600)


def check_ends(envelopes: list[Envelope]) -> list[LlmCallCompleted | LlmCallFailed]:
    """The ends of all calls, of which each has one."""
    starts = [envelope.request_id for envelope in envelopes if isinstance(envelope.data, LlmCallStarted)]
    ends = [each for each in envelopes if isinstance(each.data, LlmCallCompleted | LlmCallFailed)]
    assert sorted(starts) == sorted(each.request_id for each in ends)  # type: ignore[type-var]
    return [each.data for each in ends]  # type: ignore[misc]


@pytest.mark.parametrize("way", WAYS)
async def test_whatever_waits_for_an_engine_that_is_closed_is_told_so(way: str) -> None:
    """One kind of error, in words, whatever was called; each call has one end, and that is a cancelled one."""
    engine = an_engine()
    events = engine.bus.subscribe("llm.*", policy=Lossless())
    async with engine, anyio.create_task_group() as group:

        async def close() -> None:
            await anyio.sleep(2)
            report = await engine.aclose()
            assert present(report).clean

        group.start_soon(close)
        with pytest.raises(CancelledError, match=CLOSED):
            await WAYS[way](engine)
    ends = check_ends(events.take())
    assert way.startswith("video") or ends
    for end in ends:
        assert end.model == "s:m"
        assert isinstance(end, LlmCallCompleted) == way.startswith("video"), "the job of a video was created"
        if isinstance(end, LlmCallFailed):
            assert end.error_class == "cancelled"


async def test_what_had_arrived_is_kept_with_its_usage() -> None:
    """A reply that an engine is closed under ends as a cancelled one does: with its text, and what it used."""
    engine = an_engine()
    events = engine.bus.subscribe(">", policy=Lossless())
    await engine.start()
    session = engine.session("s:m")
    async with session.stream("Hi") as turn:
        reader = engine.attach(turn.stream_id)
        await anyio.sleep(1)
        await engine.aclose()
        with pytest.raises(CancelledError, match=CLOSED) as caught:
            await turn.message()
    seen = [event async for event in reader]
    (complete,) = [event for event in seen if isinstance(event, MessageComplete)]
    assert complete.stop_reason is StopReason.CANCELLED
    assert seen[-1] == TurnComplete("cancelled", "CancelledError: the engine was closed while this call ran")
    assert session.messages[-1].text == '{"a": '
    assert caught.value.content == session.messages[-1].content
    assert present(caught.value.usage).source is UsageSource.PARTIAL
    assert caught.value.turn.messages == session.messages  # type: ignore[attr-defined]
    (end,) = check_ends([each for each in events.take() if each.topic.startswith("llm.")])
    assert present(end.usage).source is UsageSource.PARTIAL


async def test_turns_that_wait_for_their_session_end_as_well() -> None:
    """Also those that had not begun, and a tool that takes its time."""
    engine = an_engine(Say(calls=[("wait_long", {})]), base=ScriptedAdapter)
    await engine.start()
    session = engine.session("s:m", tools=[wait_long])
    failures: list[str] = []

    async def ask() -> None:
        try:
            await session.send("Hi")
        except CancelledError as error:
            failures.append(str(error))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)
        await anyio.sleep(1)
        await engine.aclose()
    assert failures == ["the engine was closed while this call ran"] * 3


class Deaf(Slow):
    """Is cancelled in vain."""

    async def cancel(self, request_id: str) -> bool:
        return False


async def test_a_call_that_does_not_obey_holds_a_closing_engine_up_for_half_of_its_time_at_most() -> None:
    """Then its adapter is stopped; the error is the same."""
    engine = an_engine(base=Deaf, timeouts=Timeouts(shutdown=6.0))
    await engine.start()
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(CancelledError, match=CLOSED):
                await engine.generate("s:m", "Hi")

        group.start_soon(ask)
        await anyio.sleep(1)
        began = anyio.current_time()
        await engine.aclose()
        assert anyio.current_time() - began < 4.0


async def test_an_engine_that_is_closed_while_it_starts_is_closed() -> None:
    """Whoever was starting it learns that, and it doesn't come up again."""
    engine = an_engine()
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(CallboardError, match="this engine is closed"):
                await engine.generate("s:m", "Hi")

        group.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        assert present(engine._host.life).state == "starting"
        await engine.aclose()
    assert engine.closed


async def test_an_engine_that_is_being_closed_takes_nothing_more() -> None:
    """What is asked for meanwhile is refused like what comes afterwards."""
    engine = an_engine(base=Deaf)
    await engine.start()
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(CancelledError, match=CLOSED):
                await engine.generate("s:m", "Hi")

        group.start_soon(ask)
        await anyio.sleep(1)
        group.start_soon(engine.aclose)
        await anyio.sleep(1)
        with pytest.raises(Exception, match="this engine is closed; make a new one"):
            await engine.generate("s:m", "Hi")

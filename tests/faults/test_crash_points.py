"""Crashes of a call and of the trace writer, and a store that fails: each call has one end, and a row."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from callboard.adapters import AdapterError
from callboard.bus import CallboardError, Envelope, StepFinish, StoreError, StreamEvent
from callboard.engine import Engine
from tests.support.engines import registry, running, talking, topics
from tests.support.invariants import check_stream
from tests.support.present import present
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on
from callboard.tracestore import TraceStore

from .toy_engines import check_ends

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("event", range(5))
async def test_a_call_that_crashes_at_any_event_has_one_end(event: int, streamed: bool) -> None:
    """A bug inside a call is an AdapterError with what had arrived, a valid stream, and one failed attempt."""
    before = [f"piece {number} " for number in range(event)]
    async with talking(Say(*before, fails=ZeroDivisionError("a bug")), Say("fine")) as (session, events):
        seen: list[StreamEvent] = []
        with pytest.raises(AdapterError, match="crashed"):
            if streamed:
                async with session.stream("Hi") as turn:
                    async for item in turn:
                        if hasattr(item, "message_id") and not isinstance(item, StepFinish):
                            seen.append(item)  # type: ignore[arg-type]  # noqa: PERF401
            else:
                await session.send("Hi")
        if seen:
            check_stream(seen)
        kept = "".join(before) if streamed else ""
        assert "".join(message.text for message in session.messages[1:]) == kept
        assert (await session.send("again")).text == "fine"
        assert check_ends(events.take()) == 2


async def rows_and_events(path: Path) -> tuple[list[tuple[str, int, str]], list[int]]:
    async with TraceStore.open_readonly(path) as store:
        rows = [(row.request_id, row.attempt, row.status) for row in await store.calls(limit=None)]
        return rows, [envelope.seq for envelope in await store.events(limit=None)]


async def talk(engine: Engine, turns: int) -> None:
    session = engine.session("s:m")
    for _ in range(turns):
        with contextlib.suppress(CallboardError):
            async with session.stream("Hi") as turn:
                async for _ in turn:
                    await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(4))
async def test_a_writer_that_crashes_loses_and_doubles_nothing(seed: int, tmp_path: Path) -> None:
    """Wherever the trace writer's actor crashes, each event is stored once, and each call has its row and end."""
    chance = random.Random(seed)
    says = [Say("a", "b", "c", pause=lambda: asyncio.sleep(0.002)) for _ in range(30)]
    async with running(*says, store=tmp_path / "trace.db") as (engine, events):

        async def crash() -> None:
            for _ in range(3):  # the fifth in a row would be the engine's end
                await asyncio.sleep(chance.uniform(0, 0.03))
                hosted = await engine._host.living()
                present(hosted.supervisor).child("trace writer").tell("no writer understands this")

        async with anyio.create_task_group() as group:
            group.start_soon(crash)
            for _ in range(3):
                group.start_soon(talk, engine, 10)
        seen = events.take()
        assert len(topics(seen, "actor.crashed")) >= 1
        assert check_ends(seen) == 30
        await engine.aclose()
        seen += events.take()
    rows, seqs = await rows_and_events(tmp_path / "trace.db")
    assert sorted(seqs) == [envelope.seq for envelope in seen]
    assert len(rows) == 30
    assert {status for _, _, status in rows} == {"completed"}


async def test_a_store_whose_writes_fail_stops_no_call(tmp_path: Path) -> None:
    """While nothing can be written calls go on and the bus says so; afterwards every call has its row."""
    store = TraceStore(tmp_path / "trace.db")
    engine = Engine(models=registry(*[Say("a", "b") for _ in range(20)]), store=store)
    events = engine.bus.subscribe(">", name="test")
    write, fails = store.write, True

    async def failing(envelopes: Sequence[Envelope]) -> None:
        if fails:
            raise StoreError("trace.db: database or disk is full")
        await write(envelopes)

    store.write = failing  # type: ignore[method-assign]
    async with engine:
        with anyio.fail_after(30):
            await talk(engine, 10)
            with pytest.raises(StoreError, match="not committed"):
                await engine.flush()
            await talk(engine, 10)
        assert check_ends(seen := events.take()) == 20
        assert "store.state_changed" in topics(seen, "store.")
        fails = False
        await engine.flush()
    rows, _ = await rows_and_events(tmp_path / "trace.db")
    assert len(rows) == 20
    assert {status for _, _, status in rows} == {"completed"}

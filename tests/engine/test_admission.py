"""How far the trace writer may be behind for a new turn to begin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from callboard.adapters import ToolDefinition
from callboard.bus import AdmissionError, Envelope, StoreError
from callboard.engine import Engine, Limits, Tool
from callboard.engine.runtime.life import Admission
from callboard.tracestore import StoreState, TraceStore, WriterStatistics
from callboard.tracestore.sql.batches import made_at_once
from tests.support.engines import registry
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


class SlowStore(TraceStore):
    """Its writes wait until they may; or fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may = anyio.Event()
        self.may.set()
        self.stuck = anyio.Event()
        self.fails = False

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        if self.fails:
            raise StoreError("trace.db: database or disk is full")
        if not self.may.is_set():
            self.stuck.set()
        await self.may.wait()
        await super().write(envelopes)


@asynccontextmanager
async def slow(path: Path, *replies: Say, **limits: float) -> AsyncIterator[tuple[Engine, SlowStore]]:
    """An engine whose store has just got stuck."""
    store = SlowStore(path / "trace.db")
    bounds = Limits(admit_seconds=0.05, **limits)  # type: ignore[arg-type]
    async with Engine(models=registry(*replies), store=store, limits=bounds) as engine:
        await engine.flush()
        store.may = anyio.Event()
        try:
            yield engine, store
        finally:
            store.may.set()


async def test_a_writer_too_many_events_behind_holds_new_turns_up(tmp_path: Path) -> None:
    """The turn waits, then fails without a trace in history or availability; when the writer is back, it may."""
    async with slow(tmp_path, Say("one"), Say("two"), admit_events=4) as (engine, store):
        session = engine.session("s:m")
        await session.send("Hi")
        with pytest.raises(AdmissionError, match=r"is \d+ events of about \d+ bytes behind, for limits of 4 and"):
            await session.send("more")
        assert [message.text for message in session.messages] == ["Hi", "one"]
        assert engine.availability.snapshot() == ()
        store.may.set()
        await engine.flush()
        assert (await session.send("again")).text == "two"


async def test_few_events_that_refer_to_much_count_by_their_bytes(tmp_path: Path) -> None:
    """A message is carried by reference, so its length counts though no event is encoded."""
    async with slow(tmp_path, Say("one"), Say("two"), Say("three"), admit_bytes=100_000) as (engine, store):
        session = engine.session("s:m")
        await session.send("small")
        await store.stuck.wait()
        await session.send("x" * 200_000)
        with pytest.raises(AdmissionError, match="for limits of 8192 and 100000"):
            await session.send("more")
        store.may.set()
        await engine.flush()
        assert engine.statistics().writer.waiting_bytes == 0  # type: ignore[union-attr]
        assert (await session.send("again")).text == "three"


async def test_a_turn_that_was_admitted_ends_whatever_the_writer_does(tmp_path: Path) -> None:
    """Its calls and tools are not asked again."""
    tool = Tool(ToolDefinition("read"), lambda arguments: "x" * 1000)
    says = [Say(calls=[("read", {})]), Say("done")]
    async with slow(tmp_path, *says, admit_events=4, admit_bytes=5000) as (engine, _):
        assert (await engine.session("s:m", tools=[tool]).send("Hi")).text == "done"


async def test_a_store_that_fails_holds_nobody_up(tmp_path: Path) -> None:
    """Only a writer that works and is behind does; one that fails keeps what it can."""
    async with slow(tmp_path, *[Say("x")] * 10, admit_events=4) as (engine, store):
        store.may.set()
        store.fails = True
        session = engine.session("s:m")
        for _ in range(10):
            with anyio.fail_after(5):
                await session.send("Hi")
            while engine.statistics().writer.state == "ok":  # type: ignore[union-attr]  # noqa: ASYNC110
                await anyio.sleep(0.001)
        store.fails = False
        await engine.flush()


class FakeWriter:
    """A writer that says what it is told to."""

    def __init__(self) -> None:
        self.state: StoreState = "ok"
        self.committed = 0
        self.waiting = 10_000

    def statistics(self) -> WriterStatistics:
        return WriterStatistics("ok", self.waiting, 0, self.committed, 0, None, None, 0, None)


async def test_a_writer_that_makes_progress_holds_turns_up_and_refuses_none() -> None:
    """However long it takes to catch up: a crowd that came at once gets in, in its order."""
    writer, door, came = FakeWriter(), Admission(Limits(admit_seconds=1.0)), list[int]()

    async def turn(number: int) -> None:
        await door.admit(writer)
        came.append(number)

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(turn, number)
        for _ in range(10):
            await anyio.sleep(0.9)
            writer.committed += 1
        assert came == []
        writer.waiting = 0
    assert came == list(range(100))


async def test_a_writer_that_commits_nothing_has_all_turns_refused_together() -> None:
    """Who waited behind another one is not made to wait the same time again."""
    writer, door, refused = FakeWriter(), Admission(Limits(admit_seconds=1.0)), list[float]()

    async def turn() -> None:
        with pytest.raises(AdmissionError, match="has committed none for 1 s"):
            await door.admit(writer)
        refused.append(anyio.current_time())

    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(turn)
    assert len(refused) == 50
    assert max(refused) - began < 1.5


def test_the_writer_makes_more_of_a_turn_where_the_others_take_long() -> None:
    """A part is 32 events on a loop that is quick, and up to 256 on one with thousands of tasks."""
    assert [made_at_once(seconds) for seconds in (0.0, 0.0005, 0.002, 0.1)] == [32, 32, 80, 256]

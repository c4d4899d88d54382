"""A trace file and the shared store that it is shipped to: the same events, calls, costs, sessions and content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from callboard.bus.events.envelope import Envelope
from callboard.bus.events.sessions import SessionConfigured, SessionCreated
from callboard.bus.values.content import ImageBlock, TextBlock
from callboard.bus.values.messages import Message, SessionSetup
from callboard.tracestore import CallFilter, PostgresStore, Store, TraceStore
from callboard.tracestore.shipping.shipper import TraceShipper
from callboard.tracestore.sql import sums as sum_keeping
from tests.tracestore.content_making import PICTURE, appended, captured
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio


def of_run(run: str, calls: int) -> list[Envelope]:
    """The events of a run: a session, and calls in it, of which every fifth fails and every seventh has no end."""
    make = Maker(run)
    session = f"ses_{run}"
    events = [make(SessionCreated(model="openai:gpt-5", tags={"team": "a"}), session_id=session)]
    for number in range(calls):
        ids = {"session_id": session, "tags": {"k\t\\": "line\nbreak"}}
        request = f"req_{run}_{number}"
        events.append(make.started(request, **ids))
        if number % 5 == 4:
            events.append(make.failed(request, **ids))
        elif number % 7 != 6:
            events.append(make.completed(request, **ids))
    return events


async def everything(store: Store) -> dict[str, object]:
    """What a store answers, without the numbers that are its own."""
    calls = [msgspec.structs.replace(row, call_id=0) for row in await store.calls(limit=None)]
    costs = [await store.costs(by=by) for by in ((), ("model",), ("day", "provider"), ("status",))]
    events = await store.events(limit=None)
    return {
        "events": sorted(events, key=lambda envelope: (envelope.run_id, envelope.seq)),
        "calls": sorted(calls, key=lambda row: (row.request_id, row.attempt)),
        "tagged": len(await store.calls(CallFilter(tags={"k\t\\": "line\nbreak"}), limit=None)),
        "costs": costs,
        "sessions": sorted(await store.sessions(None), key=lambda row: row.session_id),
    }


@asynccontextmanager
async def shipped(trace: Path, shared: str) -> AsyncIterator[PostgresStore]:
    shipper = TraceShipper(trace, shared)
    try:
        await shipper.ship()
    finally:
        await shipper.close()
    async with PostgresStore(shared, path=trace.with_name("shared")) as store:
        yield store


async def test_what_arrives_is_summed_up(
    local: TraceStore, trace: Path, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else may write to the shared store, and what calls cost is asked of sums that are kept."""
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 5)
    await local.write(of_run("one", 40))
    async with shipped(trace, shared) as store:
        kept = await store.sql("SELECT sum(calls) FROM call_sums")
        assert kept.rows == ((40,),)
        assert await everything(store) == await everything(local)


async def test_everything_arrives(local: TraceStore, trace: Path, shared: str) -> None:
    for run in ("one", "two"):
        await local.write(of_run(run, 40))
    async with shipped(trace, shared) as store:
        assert await everything(store) == await everything(local)


async def test_a_file_that_is_shipped_twice_changes_nothing(local: TraceStore, trace: Path, shared: str) -> None:
    await local.write(of_run("one", 40))
    async with shipped(trace, shared):
        pass
    for mark in trace.parent.glob("trace.db.shipped-*"):
        mark.unlink()  # a new name in the shared store, which takes it for another file
    async with shipped(trace, shared) as store:
        assert await everything(store) == await everything(local)


async def test_what_comes_later_arrives_later(local: TraceStore, trace: Path, shared: str) -> None:
    events = of_run("one", 40)
    for begin in range(0, len(events), 7):
        await local.write(events[begin : begin + 7])
        async with shipped(trace, shared) as store:
            assert await everything(store) == await everything(local)


async def test_what_the_shared_store_lacks_is_not_pruned(local: TraceStore, trace: Path, shared: str) -> None:
    """However old it is; what has arrived goes."""
    await local.write(of_run("one", 10))
    async with shipped(trace, shared):
        pass
    late = [msgspec.structs.replace(each, ts_us=each.ts_us + 10**9) for each in of_run("two", 10)]
    await local.write(late)
    for planned in (True, False):
        report = await local.prune(before=late[-1].ts_us + 10**9, max_bytes=1, dry_run=planned)
        assert 0 < report.events <= len(of_run("one", 10))
    async with shipped(trace, shared) as store:
        assert {envelope.seq for envelope in await store.events(run_id="two")} == {each.seq for each in late}
    assert (await local.prune(before=late[-1].ts_us + 10**9)).events > 0


def begun(make: Maker, session: str, *, history: int = 0, begins: bool = True) -> Envelope:
    setup = SessionSetup(model="openai:gpt-5", system_prompt="Be brief. " * 300)
    return make(SessionConfigured(history=history, begins=begins, setup=setup), session_id=session)


LONG = [
    Message.user("What is this?"),
    Message.assistant("A long answer. " * 200),
    Message(role="user", content=(TextBlock(text="And this?"), ImageBlock(media_type="image/png", data=PICTURE))),
    Message.assistant("A picture."),
]


async def test_captured_content_arrives(local: TraceStore, trace: Path, shared: str) -> None:
    make = Maker("run_a")
    await local.write(captured(begun(make, "s"), *appended(make, LONG[:3])))
    async with shipped(trace, shared) as store:
        assert await store.saved_session("s") == await local.saved_session("s")
    await local.write(captured(*appended(make, LONG[3:], first=3)))
    await local.write(captured(begun(make, "s", history=2, begins=False), *appended(make, LONG[:1], first=2)))
    async with shipped(trace, shared) as store:
        saved = await store.saved_session("s")
        assert saved == await local.saved_session("s")
        assert saved is not None
        assert len(saved.messages) == 3


async def test_a_session_that_another_run_goes_on_with_is_one_there_too(
    local: TraceStore, trace: Path, shared: str
) -> None:
    first, second = Maker("run_a"), Maker("run_b")
    await local.write(captured(begun(first, "s"), *appended(first, LONG[:2])))
    async with shipped(trace, shared):
        pass
    assert await local.claim_session("s", "run_b", 0, 2)
    await local.write(captured(*appended(second, LONG[2:], first=2)))
    await local.write(captured(*appended(first, LONG[:1], first=2)))  # the first goes on: that is a branch
    async with shipped(trace, shared) as store:
        for session in ("s", "s.run_a"):
            saved = await store.saved_session(session)
            assert saved is not None
            assert saved == await local.saved_session(session)


async def test_sessions_of_one_name_from_two_files_stay_apart(
    local: TraceStore, trace: Path, shared: str, tmp_path: Path
) -> None:
    first, second = Maker("run_a"), Maker("run_b")
    await local.write(captured(begun(first, "s"), *appended(first, LONG[:2])))
    async with TraceStore(tmp_path / "other.db") as other:
        await other.write(captured(begun(second, "s"), *appended(second, LONG)))
        async with shipped(trace, shared):
            pass
        async with shipped(other.path, shared) as store:
            assert await store.saved_session("s") == await local.saved_session("s")
            theirs, there = await other.saved_session("s"), await store.saved_session("s.run_b")
            assert theirs is not None
            assert there is not None
            assert theirs.messages == there.messages

"""Deleted content stays deleted: deletions in a file reach the shared store, and no shipment reverts one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from callboard.bus.events.sessions import SessionConfigured, SessionCreated
from callboard.bus.values.messages import Message, SessionSetup
from callboard.tracestore import PostgresStore, ShippingOptions, TraceShipper, TraceStore
from callboard.tracestore.shipping.marks import backlogs
from tests.support.present import present
from tests.support.virtual_time import FakeClock
from tests.tracestore.content_making import appended, captured
from tests.tracestore.shipping.conftest import lose_marks, ship
from tests.tracestore.trace_making import T0, Maker

SECRET = Message.user("A secret. " * 200)
NOW = T0 + 10**12
LATER = NOW + 10**12
EVENTS = "SELECT count(*) FROM events"
_requests = count(1)


@asynccontextmanager
async def shipped(trace: Path, shared: str, at_once: int = 2000) -> AsyncIterator[PostgresStore]:
    """Send a file to the shared store, and open the store. Its clock shows `NOW`."""
    await ship(trace, shared, at_once)
    async with PostgresStore(shared, path=trace.with_name("shared"), clock=FakeClock(epoch_us=NOW)) as store:
        yield store


async def say(
    store: TraceStore,
    make: Maker,
    session: str,
    *said: Message,
    first: int = 0,
    ts_us: int = T0,
    name: str | None = None,
) -> None:
    """Add messages to a session. For the first message, begin the session."""
    events = []
    if not first:
        setup = SessionSetup(model="m", system_prompt=f"Be brief in {session}. " * 100)
        events = [
            make(SessionCreated(model="m", name=name), session_id=session, ts_us=ts_us),
            make(SessionConfigured(history=0, begins=True, setup=setup), session_id=session, ts_us=ts_us),
        ]
    await store.write(captured(*events, *appended(make, said, session, first, ts_us=ts_us)))


async def call(store: TraceStore, make: Maker, session: str, ts_us: int = T0) -> None:
    request = f"req_{next(_requests)}"
    ids = {"session_id": session, "ts_us": ts_us}
    await store.write([make.started(request, **ids), make.completed(request, **ids)])


async def bodies(store: PostgresStore) -> int:
    (((count,),),) = [(await store.sql("SELECT count(*) FROM content")).rows]
    return int(str(count))


async def test_a_session_that_a_file_deletes_is_deleted_in_the_store(local: TraceStore, shared: str) -> None:
    """Messages and bodies are deleted in the shared store. Calls and costs stay."""
    make = Maker("run_a")
    await say(local, make, "s", SECRET)
    await say(local, make, "other", Message.user("Hi"))
    await call(local, make, "s")
    async with shipped(local.path, shared) as store:
        assert await store.saved_session("s") is not None
    assert await local.delete_session("s")
    assert [(each.behind, each.erasures) for each in await backlogs(local.path)] == [(0, 1)]
    async with shipped(local.path, shared) as store:
        assert [(each.behind, each.erasures) for each in await backlogs(local.path)] == [(0, 0)]
        assert await store.saved_session("s") is None
        assert await store.sessions(None) == await local.sessions(None)
        assert await bodies(store) == 2
        assert [row.session_id for row in await store.calls()] == ["s"]
        assert await store.saved_session("other") == await local.saved_session("other") is not None


async def test_waiting_events_of_a_deleted_session_have_no_content(local: TraceStore, shared: str) -> None:
    make = Maker("run_a")
    await say(local, make, "s", SECRET)
    await call(local, make, "s")
    await local.delete_session("s")
    async with shipped(local.path, shared) as store:
        assert await store.saved_session("s") is None
        assert await store.sessions(None) == []
        assert await bodies(store) == 0
        assert len(await store.calls()) == 1


@pytest.mark.parametrize(("at_once", "before"), [(1, True), (3, False), (2000, True)])
async def test_a_session_that_begins_again_after_its_deletion_has_no_old_content(
    local: TraceStore, shared: str, at_once: int, before: bool
) -> None:
    make = Maker("run_a")
    await say(local, make, "s", SECRET, name="secret")
    if before:
        await ship(local.path, shared)
    await local.delete_session("s")
    await say(local, make, "s", Message.user("Anew"))
    for _ in range(2):
        async with shipped(local.path, shared, at_once) as store:
            assert await store.saved_session("s") == await local.saved_session("s") is not None
            assert await store.sessions(None) == await local.sessions(None)
        lose_marks(local.path)  # all events are sent again, under another name


async def test_content_that_a_file_forgets_is_deleted(local: TraceStore, shared: str, tmp_path: Path) -> None:
    await say(local, Maker("run_a"), "old", SECRET)
    await say(local, Maker("run_b"), "young", Message.user("Hi"), ts_us=LATER)
    async with TraceStore(tmp_path / "other.db") as other:
        await say(other, Maker("run_c"), "elsewhere", Message.user("Here, too"))
        await ship(other.path, shared)
        await ship(local.path, shared)
        await local.forget_content(LATER)
        async with shipped(local.path, shared) as store:
            assert await store.messages("old") == []
            for of, session in ((local, "young"), (other, "elsewhere")):
                assert await store.saved_session(session) == await of.saved_session(session) is not None


async def test_a_namesake_from_elsewhere_is_not_deleted(local: TraceStore, shared: str, tmp_path: Path) -> None:
    async with TraceStore(tmp_path / "other.db") as other:
        await say(local, Maker("run_a"), "main", Message.user("Here"))
        await say(other, Maker("run_b"), "main", Message.user("There"))
        await ship(local.path, shared)
        await ship(other.path, shared)
        await other.delete_session("main")
        async with shipped(other.path, shared) as store:
            assert await store.messages("main") == [Message.user("Here")]
            assert await store.saved_session("main.run_b") is None
        await say(other, Maker("run_d"), "main", Message.user("There again"))
        await ship(other.path, shared)
        await local.delete_session("main")
        async with shipped(local.path, shared) as store:
            assert await store.messages("main") == []
            assert await store.messages("main.run_d") == [Message.user("There again")]


async def test_a_session_that_is_deleted_in_the_store_is_not_restored(local: TraceStore, shared: str) -> None:
    """Neither later messages nor a second shipment of all events restore it."""
    make = Maker("run_a")
    await say(local, make, "s", SECRET)
    async with shipped(local.path, shared) as store:
        assert await store.delete_session("s")
    await say(local, make, "s", Message.user("More"), first=1, ts_us=LATER)
    await call(local, make, "s", LATER)
    for _ in range(2):
        async with shipped(local.path, shared) as store:
            assert await store.saved_session("s") is None
            assert await store.sessions(None) == []
            assert await bodies(store) == 0
            assert len(await store.calls()) == 1
        lose_marks(local.path)
    await say(local, Maker("run_b"), "s", Message.user("Anew"), ts_us=2 * LATER)
    async with shipped(local.path, shared) as store:
        assert await store.saved_session("s") == await local.saved_session("s") is not None
        assert [row.first_us for row in await store.sessions(None)] == [2 * LATER]


async def test_a_deleted_branch_is_not_restored(local: TraceStore, shared: str, tmp_path: Path) -> None:
    async with TraceStore(tmp_path / "other.db") as other:
        await say(local, Maker("run_a"), "main", Message.user("Here"))
        make = Maker("run_b")
        await say(other, make, "main", SECRET)
        await ship(local.path, shared)
        async with shipped(other.path, shared) as store:
            assert await store.delete_session("main.run_b")
        await say(other, make, "main", Message.user("More"), first=1, ts_us=LATER)
        async with shipped(other.path, shared) as store:
            assert await store.saved_session("main.run_b") is None
            assert await store.messages("main") == [Message.user("Here")]
            assert await bodies(store) == 2


async def test_content_that_is_forgotten_in_the_store_is_not_restored(local: TraceStore, shared: str) -> None:
    make = Maker("run_a")
    await say(local, make, "s", SECRET)
    async with shipped(local.path, shared) as store:
        await store.forget_content(LATER)
    await say(local, make, "s", Message.user("More"), first=1, ts_us=LATER)
    for _ in range(2):
        async with shipped(local.path, shared) as store:
            assert await store.messages("s") == [Message.user("More")]
            assert await bodies(store) == 1
        lose_marks(local.path)


async def test_a_shipment_that_was_read_before_a_deletion_does_not_undo_it(local: TraceStore, shared: str) -> None:
    """The shipment comes from a second, slow shipper of the file."""
    make = Maker("run_a")
    await say(local, make, "s", SECRET)
    slow = TraceShipper(local.path, shared)
    await slow._ask()
    late = present((await slow._source.read(slow._course.position, 100, 0)).shipment)
    await local.delete_session("s")
    quick = TraceShipper(local.path, shared)
    await quick._step()
    await quick._step()  # the first step asks for the position, and the second one sends the deletion
    await slow._target.take(slow._origin, late)
    await slow.close()
    await quick.close()
    async with shipped(local.path, shared) as store:
        assert await store.saved_session("s") is None
        assert await store.sessions(None) == []
        assert await bodies(store) == 0


async def test_a_deletion_is_completed(local: TraceStore, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from callboard.tracestore.postgres import received_content as erasing

    make = Maker("run_a")
    await say(local, make, "s", SECRET)
    await ship(local.path, shared)
    await local.delete_session("s")

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    shipper = TraceShipper(local.path, shared)
    with monkeypatch.context() as patch:
        patch.setattr(erasing, "sweep_bodies", killed)
        with pytest.raises(KeyboardInterrupt):
            await shipper.ship()
    await shipper.close()
    async with shipped(local.path, shared) as store:
        assert await bodies(store) == 0


async def test_calls_that_the_store_has_pruned_are_not_restored(local: TraceStore, shared: str) -> None:
    """All events are sent again in several pieces by several shippers."""
    old, young, late = Maker("run_old"), Maker("run_young"), Maker("run_late")
    for make, session, ts_us in ((old, "old", T0), (young, "young", LATER)):
        for _ in range(5):
            await call(local, make, session, ts_us)
    await say(local, old, "said", SECRET)
    await call(local, young, "young", LATER)  # the last event of a trace always stays
    await local.close_lost_runs()
    async with shipped(local.path, shared) as store:
        report = await store.prune(before=LATER)
        assert (report.attempts, report.events, report.sessions) == (5, 13, 2)
        kept = (await store.sql(EVENTS)).rows
    lose_marks(local.path)
    await call(local, late, "late")
    for _ in range(9):
        shipper = TraceShipper(local.path, shared, options=ShippingOptions(batch_events=3))
        await shipper._step()
        await shipper._step()  # one step asks for the position, and one sends
        await shipper.close()
    async with shipped(local.path, shared) as store:
        assert {row.session_id for row in await store.sessions(None)} == {"young", "late"}
        assert {row.session_id for row in await store.calls()} == {"young", "late"}
        assert await store.saved_session("said") is None
        assert await bodies(store) == 0
        assert (await store.sql(EVENTS)).rows == ((int(str(kept[0][0])) + 2,),)

"""What a process has just written is shipped without being read again, and is the same as if it had been."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus.events.envelope import Envelope
from callboard.bus.events.sessions import SessionRenamed
from callboard.bus.values.messages import Message
from callboard.tracestore import PostgresStore, ShippingOptions, TraceShipper, TraceStore
from callboard.tracestore.shipping import source
from callboard.tracestore.shipping import source as recent
from callboard.tracestore.shipping.shipment import START
from callboard.tracestore.shipping.source import Recent
from tests.support.postgres_server import PostgresServer
from tests.tracestore.content_making import appended, captured
from tests.tracestore.trace_making import T0, Maker

from .conftest import _migrate
from .test_erasures import say
from .test_shipping import everything, of_run
from .test_ways import lose_marks, story

pytestmark = pytest.mark.anyio


class Told:
    """A trace file that tells what it writes, and its shipper.

    Args:
        local: The file.
        shared: The shared store.
        batch: The number of events of a shipment.
    """

    def __init__(self, local: TraceStore, shared: str, batch: int = 2000) -> None:
        self.recent = Recent()
        local.tell(self.recent.keep)
        self.shipper = TraceShipper(
            local.path, shared, options=ShippingOptions(batch_events=batch), recent=self.recent
        )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that events are read from the file: the one behind which they lie."""
    found: list[int] = []
    events = source._events

    def noted(statements: object, after: int, *more: object) -> object:
        found.append(after)
        return events(statements, after, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(source, "_events", noted)
    return found


async def same(local: TraceStore, shared: str) -> None:
    async with PostgresStore(shared, path=local.path.with_name("shared")) as store:
        assert await everything(store) == await everything(local)


async def test_what_was_just_written_is_not_read_again(local: TraceStore, shared: str, reads: list[int]) -> None:
    told = Told(local, shared)
    events = of_run("one", 40)
    for begin in range(0, len(events), 11):  # calls end in another batch than they begin
        await local.write(events[begin : begin + 11])
        if begin % 3 == 0:
            await told.shipper.ship()
    await told.shipper.ship()
    await told.shipper.close()
    assert reads == []
    assert told.recent.behind(START) == ()
    await same(local, shared)


async def test_a_call_is_one_call_wherever_its_events_were_written(
    local: TraceStore, shared: str, reads: list[int]
) -> None:
    """Its start may come behind its end, or a second time, each in a batch of its own, but in one shipment."""
    make = Maker("run_a")
    tags = {"team": "a"}
    session = {"session_id": "ses_a"}
    told = Told(local, shared)
    for event in (
        *(make.started("req_1", tags=tags), make.completed("req_1", tags=tags), make.completed("req_2")),
        *(make.failed("req_3"), make.started("req_2"), make.started("req_3"), make.started("req_3")),
        *(make.started("req_4"), make.started("req_1"), make.completed("req_4")),
        *(make(SessionRenamed(name="One"), **session), make(SessionRenamed(name="Two"), **session)),
    ):
        await local.write([event])
    await local.write([make.started("req_5"), make.completed("req_5"), make.started("req_5")])
    await told.shipper.ship()
    await told.shipper.close()
    assert reads == []
    await same(local, shared)


async def test_any_name_and_value_arrives(local: TraceStore, shared: str, reads: list[int]) -> None:
    """Also what stands between values, or for NULL, on the way, and what the file takes cleaned only."""
    told = Told(local, shared)
    make = Maker("None")
    for number, name in enumerate(("None", "\x02", "\x1e", "\x1f", "a\nb\r", "\\N", "", "é😀\u2028", "\ud800")):
        ids = {"session_id": name, "turn_id": name, "tags": {"k\t\\": name or "."}}
        await local.write([make.started(f"{name}{number}", **ids), make.completed(f"{name}{number}", **ids)])
        await told.shipper.ship()
    await told.shipper.close()
    assert reads == []
    await same(local, shared)


async def test_what_another_one_has_written_is_read(
    local: TraceStore, shared: str, reads: list[int], trace: Path
) -> None:
    """What was written before and between, and what came of several runs at once."""
    one, two, three = (of_run(name, 12) for name in ("one", "two", "three"))
    await local.write(one[:5])
    told = Told(local, shared)
    async with TraceStore(trace) as other:
        for begin in range(5, len(one), 4):
            await local.write(one[begin : begin + 4])
            await other.write(two[begin : begin + 4])
            if begin % 3 == 0:
                await told.shipper.ship()
    await local.write([event for pair in zip(one, three, strict=True) for event in pair])
    await told.shipper.ship()
    assert reads != []
    reads.clear()
    await local.write(of_run("four", 3))
    await told.shipper.ship()
    assert reads == []  # what came before is no hindrance
    await told.shipper.close()
    await same(local, shared)


@pytest.mark.parametrize(("run", "calls"), [("one", 3), ("two", 5)])
async def test_a_file_that_was_replaced_is_read(
    local: TraceStore, shared: str, reads: list[int], tmp_path: Path, run: str, calls: int
) -> None:
    """What is in memory of the old one is not what lies behind the place in the new one."""
    told = Told(local, shared)
    await local.write(of_run("one", 5))
    copy = tmp_path / "copy.db"
    async with TraceStore(copy) as other:
        await other.write(of_run(run, calls))
    copy.replace(local.path)
    for journal in ("-wal", "-shm"):
        local.path.with_name(f"{local.path.name}{journal}").unlink(missing_ok=True)
    await told.shipper.ship()
    await told.shipper.close()
    assert reads == [0]
    async with (
        PostgresStore(shared, path=local.path.with_name("shared")) as store,
        TraceStore.open_readonly(local.path) as file,
    ):
        assert await everything(store) == await everything(file)


async def test_what_was_pruned_since_is_not_shipped(local: TraceStore, shared: str, reads: list[int]) -> None:
    told = Told(local, shared)
    events = of_run("one", 20)
    for begin in range(0, len(events), 10):
        await local.write(events[begin : begin + 10])
    await local.prune(before=events[5].ts_us)
    assert 0 < len(await local.events(limit=None)) < len(events)
    await told.shipper.ship()
    await told.shipper.close()
    assert reads == [0]
    async with PostgresStore(shared, path=local.path.with_name("shared")) as store:
        assert await store.events(limit=None) == await local.events(limit=None)


async def test_what_was_deleted_since_is_not_shipped(local: TraceStore, shared: str, reads: list[int]) -> None:
    told = Told(local, shared)
    make = Maker("run_a")
    await say(local, make, "gone", Message.user("A secret."))
    await say(local, make, "kept", Message.user("Hello."))
    assert await local.delete_session("gone")
    await told.shipper.ship()
    assert reads != []
    reads.clear()
    await local.write(captured(*appended(make, [Message.assistant("Hi.")], "kept", 1)))
    await told.shipper.ship()
    await told.shipper.close()
    assert reads == []
    async with PostgresStore(shared, path=local.path.with_name("shared")) as store:
        assert [session.session_id for session in await store.sessions(None)] == ["kept"]
        assert await store.messages("kept") == await local.messages("kept")
        assert len(await store.messages("kept")) == 2


@pytest.mark.parametrize(("limit", "most"), [("MOST_EVENTS", 25), ("MOST_BYTES", 10_000)])
async def test_no_more_is_kept_than_is_allowed(
    local: TraceStore, shared: str, reads: list[int], monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """As while the shared store is down. The older events are read then."""
    monkeypatch.setattr(recent, limit, most)
    told = Told(local, shared)
    events = of_run("one", 60)
    for begin in range(0, len(events), 10):
        await local.write(events[begin : begin + 10])
    kept = told.recent.behind(START)
    assert 10 <= sum(len(batch.seqs) for batch in kept) <= 30
    assert kept[-1].seqs[-1] == events[-1].seq
    await told.shipper.ship()
    await told.shipper.close()
    assert reads == [0]
    await same(local, shared)


async def test_nothing_is_kept_while_another_one_ships_the_file(local: TraceStore, shared: str) -> None:
    told, other = Told(local, shared), TraceShipper(local.path, shared)
    assert other._turn.take()
    await local.write(of_run("one", 5))
    await told.shipper._step()
    assert told.recent.behind(START) == ()
    await told.shipper.close()
    await other.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("ships", "writes", "writes", "another writes", "loses its mark", "prunes", "takes over")),
        st.integers(1, 30),
    ),
    max_size=14,
)


@given(steps=STEPS, batch=st.sampled_from((3, 10, 2000)))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_nothing_is_missing_or_doubled_whoever_writes(
    request: pytest.FixtureRequest, shared: str, steps: list[tuple[str, int]], batch: int
) -> None:
    """Somebody else may write to the file, prune it, or ship it at any time."""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.clean_database(server.template("shared", _migrate)) as dsn, TemporaryDirectory() as folder:
        anyio.run(_play, Path(folder), dsn, steps, batch)


async def _play(folder: Path, dsn: str, steps: list[tuple[str, int]], batch: int) -> None:
    path = folder / "trace.db"
    mine, theirs = story("one"), story("two")
    has_pruned = False
    async with TraceStore(path) as local, TraceStore(path) as other:
        told = Told(local, dsn, batch)
        for what, number in steps:
            if what == "ships":
                await told.shipper.ship()
            elif what == "writes":
                await local.write(_taken(mine, number))
            elif what == "another writes":
                await other.write(_taken(theirs, number))
            elif what == "loses its mark":
                lose_marks(path)
            elif what == "prunes":
                has_pruned = True
                await other.prune(before=T0 + number * 1_000_000)
            else:
                another = TraceShipper(path, dsn)
                await another.ship()
                await another.close()
        await local.write(mine)
        await told.shipper.ship()
        await told.shipper.close()
        async with PostgresStore(dsn, path=folder / "shared") as store:
            if not has_pruned:
                assert await everything(store) == await everything(local)
            there = [await store.events(run_id=run, limit=None) for run in ("one", "two")]
            here = [await local.events(run_id=run, limit=None) for run in ("one", "two")]
        for shipped, kept in zip(there, here, strict=True):
            seqs = {event.seq for event in kept}
            assert [event for event in shipped if event.seq in seqs] == kept
            assert len({event.seq for event in shipped}) == len(shipped)


def _taken(events: list[Envelope], count: int) -> list[Envelope]:
    taken, events[:] = events[:count], events[count:]
    return taken

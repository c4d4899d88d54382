"""Recent events are shipped from memory, with the same result as from the file."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.events import Envelope
from callboard.bus.events.sessions import SessionRenamed
from callboard.bus.values.messages import Message
from callboard.tracestore import PostgresStore, PriceTable, ShippingOptions, TraceShipper, TraceStore
from callboard.tracestore.postgres.connection import Address, address_of
from callboard.tracestore.shipping import source
from callboard.tracestore.shipping import source as recent
from callboard.tracestore.shipping.marks import marks
from callboard.tracestore.shipping.shipment import START
from callboard.tracestore.shipping.source import Recent

from ...support.pooler import pooler
from ...support.postgres_server import PostgresServer
from ..content_making import appended, captured
from ..trace_making import T0, Maker
from .conftest import _migrate, lose_marks, ship
from .test_erasures import say
from .test_shipping import everything, of_run
from .test_ways import story


class Told:
    """A trace file that passes its written events to memory, and its shipper.

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
    """For each read of events from the file, the number of the event before."""
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


async def test_a_call_in_several_batches_is_one_row(local: TraceStore, shared: str, reads: list[int]) -> None:
    """A start can come after its end or a second time, in separate batches, but in one shipment."""
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
    """Names include separators and the mark for NULL of the transfer, and texts that the file must clean."""
    told = Told(local, shared)
    make = Maker("None")
    for number, name in enumerate(
        ("None", "\x02None\x02", "\x1e", "\x1f", "a\nb\r", "\\N", "\\.", "", "é\u2028", "\ud800")
    ):
        ids = {"session_id": name, "turn_id": name, "tags": {"k\t\\": name or "."}}
        await local.write([make.started(f"{name}{number}", **ids), make.completed(f"{name}{number}", **ids)])
        await told.shipper.ship()
    await told.shipper.close()
    assert reads == []
    await same(local, shared)


async def test_events_of_another_writer_are_read(local: TraceStore, shared: str, reads: list[int]) -> None:
    """The file is read for earlier events, for missing events in between, and for a batch with several runs."""
    one, two, three = (of_run(name, 12) for name in ("one", "two", "three"))
    await local.write(one[:5])
    told = Told(local, shared)
    async with TraceStore(local.path) as other:
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
    assert reads == []  # earlier reads don't prevent shipping from memory
    await told.shipper.close()
    await same(local, shared)


@pytest.mark.parametrize(("run", "calls"), [("one", 3), ("two", 5)])
async def test_a_replaced_file_is_read(
    local: TraceStore, shared: str, reads: list[int], tmp_path: Path, run: str, calls: int
) -> None:
    """The events in memory belong to the old file, so they are not shipped for the new one."""
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


async def test_pruned_events_are_not_shipped(local: TraceStore, shared: str, reads: list[int]) -> None:
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


async def test_deleted_content_is_not_shipped(local: TraceStore, shared: str, reads: list[int]) -> None:
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
async def test_events_in_memory_are_limited(
    local: TraceStore, shared: str, reads: list[int], monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """If the limit is reached, as while the shared store is down, older events are read from the file."""
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


async def test_nothing_is_kept_while_another_shipper_has_the_turn(local: TraceStore, shared: str) -> None:
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
def test_no_event_is_missing_or_doubled_with_other_writers(
    request: pytest.FixtureRequest, shared: str, steps: list[tuple[str, int]], batch: int
) -> None:
    """Another program may write to the file, prune it, or ship it at any time."""
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


# Other parts of an address of a shared store: a pooler in transaction mode, a schema, and several hosts.


def database_of(dsn: str) -> str:
    return dsn.rpartition("/")[2]


def set_role(dsn: str, schema: str = "callboard") -> None:
    """The settings that a role needs behind a pooler. The test sets them for the whole database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in (f"search_path = {schema}", "timezone = 'UTC'"):
            connection.execute(f'ALTER DATABASE "{database_of(dsn)}" SET {setting}'.encode())


@pytest.fixture
def pooled(shared: str) -> Iterator[str]:
    """The address of a pooler in front of an empty shared store."""
    set_role(shared)
    with pooler(shared) as dsn:
        yield dsn


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u@h/d", ("postgresql://u@h/d", None, False)),
        ("postgresql://u@h/d?schema=a", ("postgresql://u@h/d", "a", False)),
        ("postgresql://h/d?schema=a&sslmode=require", ("postgresql://h/d?sslmode=require", "a", False)),
        ("postgresql://h/d?sslmode=require&schema=a", ("postgresql://h/d?sslmode=require", "a", False)),
        ("postgresql://h/d?pooler=transaction&schema=a", ("postgresql://h/d", "a", True)),
        ("postgres://h/d?application_name=schema=x", ("postgres://h/d?application_name=schema=x", None, False)),
        ("host=h dbname=d", ("host=h dbname=d", None, False)),
        ("schema=a host=h  pooler=transaction dbname=d", ("host=h  dbname=d", "a", True)),
    ],
)
def test_an_address_is_parsed(text: str, expected: tuple[str, str | None, bool]) -> None:
    assert address_of(text) == Address(*expected)


def test_invalid_parts_of_an_address_are_refused() -> None:
    with pytest.raises(StoreError, match="pooler must be transaction"):
        PostgresStore("postgresql://h/d?pooler=session")
    with pytest.raises(ValueError, match="the address has team_b"):
        PostgresStore("postgresql://h/d?schema=team_b", schema="team_a")
    assert PostgresStore("postgresql://h/d?schema=team_b").schema == "team_b"


async def test_a_lock_is_held_through_a_pooler(pooled: str, tmp_path: Path) -> None:
    entered = anyio.Event()

    async def enter(store: PostgresStore) -> None:
        async with store.exclusive("night"):
            entered.set()

    async with (
        PostgresStore(pooled, path=tmp_path / "one") as one,
        PostgresStore(pooled, path=tmp_path / "other") as other,
        anyio.create_task_group() as group,
    ):
        async with one.exclusive("night"):
            group.start_soon(enter, other)
            for _ in range(20):
                await one.last_event_id()
            assert not entered.is_set()


async def test_everything_arrives_through_a_pooler(local: TraceStore, shared: str, pooled: str) -> None:
    """Events are sent directly and staged. Captured content and deletions arrive, too."""
    make = Maker("run_said")
    await local.write(of_run("one", 40))
    await say(local, make, "gone", Message.user("A secret."))
    await ship(local.path, pooled, batch=11)
    await local.delete_session("gone")
    await say(local, make, "kept", Message.user("Hello."))
    await local.write(captured(*appended(make, [Message.assistant("Hi.")], "kept", 1)))
    await ship(local.path, pooled)
    lose_marks(local.path)
    await local.write(of_run("two", 40))
    await ship(local.path, pooled, batch=11)
    for dsn in (pooled, shared):
        async with PostgresStore(dsn, path=local.path.with_name("shared")) as store:
            assert await everything(store) == await everything(local)
            assert await store.messages("kept") == await local.messages("kept")


async def test_a_store_works_through_a_pooler_except_for_repricing(local: TraceStore, pooled: str) -> None:
    """Statements are repeated more often than psycopg's limit for preparing a statement."""
    events = of_run("one", 40)
    async with PostgresStore(pooled, path=local.path.with_name("one")) as store:
        for begin in range(0, len(events), 3):
            await store.write(events[begin : begin + 3])
            await store.calls(limit=1)
        await local.write(events)
        assert await everything(store) == await everything(local)
        assert (await store.sql("SELECT count(*) FROM calls")).rows == ((40,),)
        assert (await store.sql("SHOW search_path")).rows == (("callboard",),)
        assert (await store.prune(before=events[20].ts_us)).events > 0
        with pytest.raises(StoreError, match="Use the address of the server itself"):
            await store.reprice(PriceTable(()))


async def test_a_role_without_the_settings_gets_their_names(shared: str, trace: Path) -> None:
    with pooler(shared) as dsn:
        with pytest.raises(StoreUnavailable, match=r'ALTER ROLE "\w+" SET search_path = callboard'):
            async with PostgresStore(dsn, path=trace):
                pass


async def test_one_file_goes_to_two_schemas_of_one_database(local: TraceStore, shared: str) -> None:
    teams = [f"{shared}?schema=team_{letter}" for letter in "ab"]
    await local.write(of_run("one", 10))
    await ship(local.path, teams[0])
    await local.write(of_run("two", 10))
    await ship(local.path, teams[1])
    assert sorted(each.target.rpartition("?")[2] for each in marks(local.path)) == [
        "schema=team_a",
        "schema=team_b",
    ]
    async with PostgresStore(teams[0], path=local.path.with_name("a")) as store:
        assert {event.run_id for event in await store.events(limit=None)} == {"one"}
    await ship(local.path, teams[0])
    for team in teams:
        async with PostgresStore(team, path=local.path.with_name("team")) as store:
            assert await everything(store) == await everything(local)
    async with PostgresStore(shared, path=local.path.with_name("other")) as store:
        assert await store.events(limit=None) == []


async def test_the_writable_host_is_used(request: pytest.FixtureRequest, local: TraceStore, shared: str) -> None:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening
        dead = nobody.getsockname()[1]
        access, _, place = shared.rpartition("@")
        dsn = f"{access}@127.0.0.1:{dead},{place}?target_session_attrs=read-write"
        await local.write(of_run("one", 10))
        shipper = TraceShipper(local.path, dsn)
        await shipper.ship()
        database = database_of(shared)
        setting = f'ALTER DATABASE "{database}" SET default_transaction_read_only'
        server.execute(f"{setting} = on")  # the setting of a standby
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,))
        await local.write(of_run("two", 10))
        with pytest.raises(StoreError):
            await shipper.ship()
        server.execute(f"{setting} = off")
        shipper._course.state = "asking"  # the delay is over
        await shipper.ship()
        await shipper.close()
    async with PostgresStore(shared, path=local.path.with_name("shared")) as store:
        assert await everything(store) == await everything(local)

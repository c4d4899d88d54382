"""A trace file and its shared store: both have the same events, calls, costs, sessions and content."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope
from callboard.bus.events.sessions import SessionConfigured, SessionCreated
from callboard.bus.values.content import ImageBlock, TextBlock
from callboard.bus.values.messages import Message, SessionSetup
from callboard.tracestore import CallFilter, PostgresStore, Store, TraceStore
from callboard.tracestore.postgres import schema as migrations
from callboard.tracestore.shipping.shipment import START, Position
from callboard.tracestore.shipping.shipper import Ask, Pause, Send, ShippingOptions, ShippingPlan, TraceShipper
from callboard.tracestore.sql import sums as sum_keeping

from ...support.postgres_server import PostgresServer
from ..content_making import PICTURE, appended, captured
from ..trace_making import Maker
from .conftest import ship
from .test_erasures import say


def of_run(run: str, calls: int) -> list[Envelope]:
    """The events of a run: a session with calls. Every fifth call fails, and every seventh has no end."""
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
    """The results of a store's queries, without its own numbers."""
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
    await ship(trace, shared)
    async with PostgresStore(shared, path=trace.with_name("shared")) as store:
        yield store


async def assert_arrives(local: TraceStore, shared: str) -> None:
    """Ship the file, and assert that the shared store has the same results."""
    async with shipped(local.path, shared) as store:
        assert await everything(store) == await everything(local)


async def test_shipped_calls_are_summed(local: TraceStore, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 5)
    await local.write(of_run("one", 40))
    async with shipped(local.path, shared) as store:
        kept = await store.sql("SELECT sum(calls) FROM call_sums")
        assert kept.rows == ((40,),)
        assert await everything(store) == await everything(local)


async def test_events_that_the_shared_store_lacks_are_not_pruned(local: TraceStore, shared: str) -> None:
    """Events of any age stay until they are shipped. Shipped events are pruned."""
    await local.write(of_run("one", 10))
    await ship(local.path, shared)
    late = [msgspec.structs.replace(each, ts_us=each.ts_us + 10**9) for each in of_run("two", 10)]
    await local.write(late)
    for planned in (True, False):
        report = await local.prune(before=late[-1].ts_us + 10**9, max_bytes=1, dry_run=planned)
        assert 0 < report.events <= len(of_run("one", 10))
    async with shipped(local.path, shared) as store:
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


async def test_captured_content_arrives(local: TraceStore, shared: str) -> None:
    make = Maker("run_a")
    await local.write(captured(begun(make, "s"), *appended(make, LONG[:3])))
    async with shipped(local.path, shared) as store:
        assert await store.saved_session("s") == await local.saved_session("s")
    await local.write(captured(*appended(make, LONG[3:], first=3)))
    await local.write(captured(begun(make, "s", history=2, begins=False), *appended(make, LONG[:1], first=2)))
    async with shipped(local.path, shared) as store:
        saved = await store.saved_session("s")
        assert saved == await local.saved_session("s")
        assert len(saved.messages) == 3


async def test_a_session_that_another_run_continues_stays_one_session(local: TraceStore, shared: str) -> None:
    first, second = Maker("run_a"), Maker("run_b")
    await local.write(captured(begun(first, "s"), *appended(first, LONG[:2])))
    await ship(local.path, shared)
    assert await local.claim_session("s", "run_b", 0, 2)
    await local.write(captured(*appended(second, LONG[2:], first=2)))
    # the first run continues, which makes a branch
    await local.write(captured(*appended(first, LONG[:1], first=2)))
    async with shipped(local.path, shared) as store:
        for session in ("s", "s.run_a"):
            saved = await store.saved_session(session)
            assert saved is not None
            assert saved == await local.saved_session(session)


# The decisions of a shipper, and two shippers of one file with a target that fails at random.

OPTIONS = ShippingOptions(batch_events=4, look_seconds=1.0, ask_seconds=60.0, first_retry=0.5, longest_retry=4.0)


def test_waits_double_and_the_target_is_asked_after_each() -> None:
    course = ShippingPlan(OPTIONS)
    now, waits = 0.0, []
    for _ in range(6):
        assert course.next(now) == Ask()
        waits.append(course.failed(now))
        assert course.next(now) == Pause(waits[-1])
        now += waits[-1]
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    course.confirmed(START)
    course.sent(Position(1, "r", 1))
    assert course.failed(now) == 0.5


@given(st.integers(1, 30), st.integers(1, 9))
def test_smaller_batches_single_out_what_cannot_be_stored(events: int, bad: int) -> None:
    course = ShippingPlan(OPTIONS)
    course.confirmed(START)
    stored: list[int] = []
    for _ in range(300):
        step = course.next(0.0)
        assert isinstance(step, Send)
        batch = list(range(step.after.event + 1, events + 1))[: step.limit]
        if not batch:
            break
        last = Position(batch[-1], "r", batch[-1])
        if bad in batch:
            assert course.unstorable(len(batch), last) == (len(batch) == 1)
        else:
            stored += batch
            course.sent(last)
    assert stored == [number for number in range(1, events + 1) if number != bad]


class _Target:
    """A target that stores events and its position. Each method is one transaction."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.mark = START

    def take(self, after: Position, batch: list[int]) -> Position:
        self.events += [event for event in batch if event not in self.events]
        last = Position(batch[-1], "r", batch[-1])
        if self.mark.event <= last.event or after == START:
            self.mark = last
        return self.mark


FATES = st.sampled_from(["ok", "ok", "ok", "before", "after", "killed", "grows"])


@given(st.lists(st.tuples(st.integers(0, 1), FATES), max_size=60), st.integers(0, 20))
def test_no_event_is_missing_or_doubled_if_steps_fail(turns: list[tuple[int, str]], events: int) -> None:
    """Two shippers take turns. A batch fails before or after the commit, or a shipper dies."""
    target, now = _Target(), 0.0
    courses = [ShippingPlan(OPTIONS), ShippingPlan(OPTIONS)]
    turns = [*turns, *[(0, "ok")] * (events + 40), *[(1, "ok")] * (events + 40)]
    for who, fate in turns:
        now += 10.0
        course = courses[who]
        events += fate == "grows"
        step = course.next(now)
        assert not isinstance(step, Pause)  # no delay is longer than ten seconds
        if fate == "killed":
            courses[who] = ShippingPlan(OPTIONS)
        elif fate == "before":
            course.failed(now)
        elif isinstance(step, Ask):
            course.confirmed(target.mark)
        else:
            batch = list(range(step.after.event + 1, events + 1))[: step.limit]
            if not batch:
                course.nothing_left(now)
                continue
            mark = target.take(step.after, batch)
            if fate == "after":
                course.failed(now)
            else:
                course.sent(mark)
        # there is never a gap before the mark
        assert sorted(target.events) == list(range(1, len(target.events) + 1))
        assert course.position.event <= len(target.events)
    assert sorted(target.events) == list(range(1, events + 1))


# Two versions of the schema, one of the shippers and one of the stores.

LATER_STEP = (
    "of tomorrow",
    (
        "ALTER TABLE events ADD COLUMN flavour bigint NOT NULL DEFAULT 0",
        "ALTER TABLE calls ADD COLUMN colour text",
        "ALTER TABLE shipping ADD COLUMN weather text",
        "CREATE TABLE more (id bigint PRIMARY KEY)",
    ),
)


@contextmanager
def version_with(steps: tuple[tuple[str, tuple[str, ...]], ...]) -> Iterator[None]:
    """In the block, Callboard has these schema steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", steps)
        patch.setattr(migrations, "SCHEMA_VERSION", len(steps))
        yield


def newer() -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (*migrations.MIGRATIONS, LATER_STEP)


async def migrated(dsn: str, folder: Path) -> None:
    async with PostgresStore(dsn, path=folder / "shared"):
        pass


async def assert_all_there(local: TraceStore, dsn: str, folder: Path) -> None:
    with version_with(newer()):
        async with PostgresStore(dsn, path=folder / "shared") as store:
            assert await everything(store) == await everything(local)


async def test_a_shipper_of_the_previous_version_continues(local: TraceStore, shared: str, tmp_path: Path) -> None:
    shipper = TraceShipper(local.path, shared)
    try:
        await local.write(of_run("one", 20))
        await shipper.ship()
        with version_with(newer()):
            await migrated(shared, tmp_path)
        for run in ("two", "three"):
            await local.write(of_run(run, 20))
            await shipper.ship()
    finally:
        await shipper.close()
    await assert_all_there(local, shared, tmp_path)


async def test_a_shipper_reports_a_newer_store_and_keeps_events(
    local: TraceStore, shared: str, tmp_path: Path
) -> None:
    with version_with(newer()):
        await migrated(shared, tmp_path)
    await local.write(of_run("one", 20))
    shipper = TraceShipper(local.path, shared)
    with pytest.raises(StoreError, match="Update Callboard"):
        await shipper.ship()
    assert shipper.statistics().state == "retrying"
    assert shipper.statistics().behind == len(of_run("one", 20))
    await shipper.close()
    with version_with(newer()):
        shipper = TraceShipper(local.path, shared)
        await shipper.ship()
        await shipper.close()
    await assert_all_there(local, shared, tmp_path)


async def test_upgrades_need_the_owner(local: TraceStore, postgres_server: PostgresServer, tmp_path: Path) -> None:
    """The host's role does not own the tables. After their owner has upgraded them, the shipper continues."""
    await local.write(of_run("one", 20))
    role = "callboard_test_host"
    with postgres_server.clean_database() as dsn:
        name = dsn.rpartition("/")[2]
        with version_with(migrations.MIGRATIONS[:2]):
            await migrated(dsn, tmp_path)
        postgres_server.execute(
            f"DROP ROLE IF EXISTS {role}",
            f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
            f"GRANT USAGE ON SCHEMA callboard TO {role}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA callboard TO {role}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA callboard TO {role}",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA callboard TO {role}",
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA callboard GRANT ALL ON TABLES TO {role}",
            database=name,
        )
        shipper = TraceShipper(local.path, postgres_server.dsn_of(name, user=role, password="secret"))
        try:
            with pytest.raises(StoreError, match=r"has schema version 2.*their owner"):
                await shipper.ship()
            await migrated(dsn, tmp_path)
            shipper._course.state = "asking"  # the delay is over
            await shipper.ship()
        finally:
            await shipper.close()
        async with PostgresStore(dsn, path=tmp_path / "shared") as store:
            assert await everything(store) == await everything(local)
        postgres_server.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}", database=name)


# A shared store that is restored from an older backup gets all missing events that the files still have.


def copy(server: PostgresServer, name: str, copied: str) -> None:
    """Copy a database, as pg_dump and pg_restore do."""
    _cut(server, name)
    server.execute(f'CREATE DATABASE "{copied}" TEMPLATE "{name}"')


def put_back(server: PostgresServer, name: str, copied: str) -> None:
    server.execute(f'DROP DATABASE "{name}" WITH (FORCE)', f'ALTER DATABASE "{copied}" RENAME TO "{name}"')


def _cut(server: PostgresServer, name: str) -> None:
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


@pytest.mark.parametrize(("restarted", "empty"), [(True, False), (False, True)])
async def test_the_shipper_continues_from_the_backup(
    local: TraceStore, postgres_server: PostgresServer, tmp_path: Path, restarted: bool, empty: bool
) -> None:
    """The shipper keeps running or starts again. Deletions that the backup lacks are repeated."""
    make = Maker("run_said")
    with postgres_server.clean_database() as dsn:
        name = dsn.rpartition("/")[2]
        shipper = TraceShipper(local.path, dsn)
        await shipper._target.open()
        if not empty:
            await local.write(of_run("one", 20))
            await say(local, make, "s", Message.user("A secret"))
            await shipper.ship()
        copy(postgres_server, name, f"{name}_copy")
        await local.write(of_run("two", 20))
        await say(local, make, "t", Message.user("Another"))
        await shipper.ship()
        await local.delete_session("s")
        await local.write(of_run("three", 20))
        await shipper.ship()
        put_back(postgres_server, name, f"{name}_copy")
        if restarted:
            await shipper.close()
            shipper = TraceShipper(local.path, dsn)
        await local.write(of_run("four", 20))
        await shipper.ship()
        await shipper.close()
        async with PostgresStore(dsn, path=tmp_path / "shared") as store:
            assert await everything(store) == await everything(local)
            assert await store.saved_session("s") is None
            assert await store.saved_session("t") == await local.saved_session("t") is not None


async def test_a_single_deletion_is_repeated(
    local: TraceStore, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with postgres_server.clean_database() as dsn:
        name = dsn.rpartition("/")[2]
        shipper = TraceShipper(local.path, dsn)
        await say(local, Maker("run_said"), "s", Message.user("A secret"))
        await shipper.ship()
        copy(postgres_server, name, f"{name}_copy")
        await local.delete_session("s")
        await shipper.ship()
        put_back(postgres_server, name, f"{name}_copy")
        await local.write(of_run("one", 3))
        await shipper.ship()
        await shipper.close()
        async with PostgresStore(dsn, path=tmp_path / "shared") as store:
            assert await store.saved_session("s") is None

"""Pruning a trace by age, and copies of a trace file."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import ImageBlock, Message, SessionConfigured, TextBlock
from callboard.bus import ActorStarted, SessionCreated, StoreError
from callboard.tracestore import CallFilter, PostgresStore, PriceRow, PriceTable, PruneReport, TraceStore
from callboard.tracestore.postgres import upkeep
from callboard.tracestore.sql import expiry, pruning
from callboard.tracestore.sqlite import trace_file

from .content_making import SETUP, appended, captured, count, everything
from .contract.test_pruning import NOVEMBER, fill
from .test_trace_file import integrity
from .trace_making import T0, Maker, call, sql

# Retention: old calls are deleted completely, the sums of other calls stay, and no other code can delete.

SECOND = 1_000_000
PRICES = PriceTable([PriceRow(model="openai:*", input=1_000_000, output=2_000_000)], label="later")


def counts(path: Path) -> dict[str, int]:
    tables = ("runs", "sessions", "calls", "call_tags", "call_cost", "events", "pruning")
    return {table: sql(path, f"SELECT count(*) FROM {table}")[0][0] for table in tables}


async def test_a_call_that_is_open_or_ended_later_keeps_all_events(store: TraceStore, make: Maker) -> None:
    """A call across the cutoff, an open call, and a call with a later second attempt keep every event."""
    across = call(make, 1, 0, seconds=100)
    still = make.started("req_open", ts_us=T0)
    retried = [
        make.started("req_r", ts_us=T0),
        make.failed("req_r", will_retry=True, ts_us=T0 + 1),  # type: ignore[arg-type]
        make.started("req_r", attempt=2, ts_us=T0 + 60 * SECOND),
    ]
    await store.write([*across, still, *retried, *call(make, 9, 200)])
    before = counts(store.path)
    report = await store.prune(before=T0 + 50 * SECOND)
    assert (report.attempts, report.events) == (0, 0)
    assert counts(store.path) == before


async def test_a_living_run_stays(store: TraceStore, make: Maker) -> None:
    """The run keeps its number, even without rows. Its next events belong to it."""
    await store.write([make(ActorStarted(actor="x"), ts_us=T0)])
    await store.write(call(Maker("run_other"), 1, 10))
    await store.prune(before=T0 + 5 * SECOND)
    assert counts(store.path)["runs"] == 2
    await store.write(call(make, 2, 20))
    assert {row.run_id for row in await store.calls()} == {"run_test", "run_other"}


async def test_only_a_prune_can_delete_and_nothing_can_edit(store: TraceStore, make: Maker) -> None:
    """Before and after a prune, a DELETE is refused. During its transaction, a younger event can't be deleted.
    Every tool is refused, because triggers check it.
    """
    await store.write([*call(make, 1, 0), *call(make, 2, 100)])
    await store.reprice(PRICES)
    for _ in range(2):
        with contextlib.closing(sqlite3.connect(store.path)) as other:
            for statement in (
                *("DELETE FROM events", "DELETE FROM call_cost", "UPDATE events SET data = '{}'"),
                *("UPDATE call_cost SET cost_nano = 0", "UPDATE price_row SET input = 0"),
            ):
                with pytest.raises(sqlite3.IntegrityError):
                    other.execute(statement)
        await store.prune(before=T0 + 50 * SECOND)
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        other.execute("INSERT INTO pruning VALUES (?)", (T0 + 50 * SECOND,))
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            other.execute("DELETE FROM events")


async def test_writing_continues_meanwhile(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "CALLS_AT_ONCE", 10)
    await store.write([event for number in range(200) for event in call(make, number, number)])
    left: list[int] = []

    async def write_once(report: PruneReport) -> None:
        await store.write(call(Maker("run_new"), 1000, 1000))
        left.append(200 - seen[-1].attempts)

    seen: list[PruneReport] = []
    async with anyio.create_task_group() as group:

        def told(report: PruneReport) -> None:
            seen.append(report)
            if len(seen) == 1:
                group.start_soon(write_once, report)

        await store.prune(before=T0 + 5000 * SECOND, progress=told)
    assert left[0] > 100
    assert await integrity(store) == "ok"


async def test_an_interrupted_prune_leaves_complete_calls_and_is_continued(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune that stops after its first step has deleted complete calls. The next prune deletes the rest."""
    monkeypatch.setattr(pruning, "CALLS_AT_ONCE", 3)
    await store.write([event for number in range(10) for event in call(make, number, number)])

    def stop(report: PruneReport) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError):
        await store.prune(before=T0 + 5000 * SECOND, progress=stop)
    assert (counts(store.path)["calls"], counts(store.path)["events"]) == (7, 14)
    report = await store.prune(before=T0 + 5000 * SECOND)
    assert (report.attempts, counts(store.path)["calls"], counts(store.path)["call_tags"]) == (6, 1, 1)


@given(
    spans=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=12),
    cutoff=st.integers(0, 100),
    repriced=st.booleans(),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_remaining_calls_keep_their_sums(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]], cutoff: int, repriced: bool
) -> None:
    """The other calls keep their costs under both prices, and all their events."""
    async with TraceStore(tmp_path_factory.mktemp("sums") / "trace.db") as store:
        make, moment = Maker(), T0 + cutoff * SECOND
        for number, (at, seconds) in enumerate(spans, 1):
            await store.write(call(make, number, at, seconds))
        if repriced:
            await store.reprice(PRICES)
        rows = {row.request_id: row for row in await store.calls(limit=None)}
        dry = await store.prune(before=moment, dry_run=True)
        report = await store.prune(before=moment)
        left = await store.calls(limit=None)
        assert all(row == rows[row.request_id] for row in left)
        young = {name for name, row in rows.items() if (row.finished_us or 0) >= moment}
        newest = f"req_{len(spans)}"
        assert {row.request_id for row in left} == young | {newest}
        assert (dry.attempts, dry.events, dry.costs) == (report.attempts, report.events, report.costs)
        (total,) = await store.costs(by=())
        assert total.at_call_time_nano_usd == sum(int(name[4:]) for name in young | {newest})
        assert total.cost_nano_usd == sum(row.cost.nano_usd or 0 for row in left if row.cost)
        assert len(await store.events(limit=None)) == 2 * len(left)
        found = [row for n in range(len(spans) + 1) for row in await store.calls(CallFilter(tags={"n": str(n)}))]
        assert len(found) == len(left)


async def test_a_limit_on_size_deletes_the_oldest_calls(tmp_path: Path, make: Maker) -> None:
    """The used pages are below the limit, the youngest calls stay, and the file becomes smaller."""
    async with TraceStore(tmp_path / "trace.db") as store:
        for start in range(0, 2000, 500):
            await store.write([event for n in range(start, start + 500) for event in call(make, n, n)])
        dry = await store.prune(max_bytes=10**6, dry_run=True)
        report = await store.prune(max_bytes=10**6)
        assert dry.bytes_before == report.bytes_before > 10**6
        assert report.bytes_after <= 10**6
        assert report.file_bytes < 1.1 * 10**6
        numbers = sorted(int(row.request_id[4:]) for row in await store.calls(limit=None))
        assert numbers == list(range(numbers[0], 2000))
        assert 0 < dry.attempts <= report.attempts == numbers[0]
        assert (await store.prune(max_bytes=10**6)).attempts == 0


async def test_a_vacuum_shrinks_a_file_without_auto_vacuum(tmp_path: Path, make: Maker) -> None:
    """The file is rewritten once. From then on, it can shrink by itself."""
    path = tmp_path / "trace.db"
    sql(path, "PRAGMA auto_vacuum = NONE", "CREATE TABLE x (y)", "DROP TABLE x")
    async with TraceStore(path) as store:
        await store.write([event for n in range(1000) for event in call(make, n, n)])
        kept = await store.prune(before=T0 + 10**6 * SECOND)
        assert kept.file_bytes > 2 * kept.bytes_after
        report = await store.prune(vacuum=True)
        assert report.file_bytes == report.bytes_after
        ((mode,),) = await store._database.read("PRAGMA auto_vacuum")
        assert mode == 2
        assert await integrity(store) == "ok"


async def test_a_reader_can_only_try_a_prune_or_a_repricing(store: TraceStore, make: Maker) -> None:
    await store.write([*call(make, 1, 0), *call(make, 2, 100)])
    async with TraceStore.open_readonly(store.path) as reader:
        assert (await reader.prune(before=T0 + 50 * SECOND, dry_run=True)).attempts == 1
        assert (await reader.reprice(PRICES, dry_run=True)).sum_after_nano_usd == 2 * 120_000
        with pytest.raises(StoreError, match="reading only"):
            await reader.prune(before=T0 + 50 * SECOND)
        with pytest.raises(StoreError, match="reading only"):
            await reader.reprice(PRICES)


async def test_retried_calls_are_counted_and_deleted_with_all_their_attempts(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts of a call can be far apart. A dry run counts exactly the deleted rows."""
    monkeypatch.setattr(pruning, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(pruning, "CALLS_AT_ONCE", 2)
    names = [f"req_{n}" for n in range(3)]
    for attempt in (1, 2, 3):
        for name in names:
            ids = {"attempt": attempt, "tags": {"try": str(attempt)}}
            await store.write([make.started(name, **ids), make.failed(name, will_retry=attempt < 3, **ids)])  # type: ignore[arg-type]
    await store.write(call(make, 9, 1000))
    dry = await store.prune(before=T0 + 500 * SECOND, dry_run=True)
    done = await store.prune(before=T0 + 500 * SECOND)
    assert (dry.attempts, dry.events) == (done.attempts, done.events) == (9, 18)
    assert counts(store.path)["call_tags"] == 1


# Captured content is deleted with the pruned sessions. Content that another session uses stays.

OLD, YOUNG, CUTOFF = T0, T0 + 10**12, T0 + 10**11
PICTURE = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
MANUAL = TextBlock("a manual that both of them were given " * 100)


async def keep(
    store: TraceStore, make: Maker, session: str, said: list[Message], ts_us: int, first: int = 0
) -> None:
    """Write a session whose messages all have the same time."""
    begun = [
        make(SessionCreated(model="sonnet"), session_id=session, ts_us=ts_us),
        make(SessionConfigured(history=0, setup=SETUP, begins=True), session_id=session, ts_us=ts_us),
    ]
    made = appended(make, said, session, first, ts_us=ts_us)
    await store.write(captured(*([] if first else begun), *made))


async def test_old_messages_of_a_living_session_stay(store: TraceStore, make: Maker) -> None:
    """A living session keeps its first messages, and the blocks that it shares with a pruned session."""
    long_ago = [Message.user([TextBlock("look"), PICTURE]), Message.assistant([MANUAL])]
    await keep(store, make, "old", long_ago, OLD)
    await keep(store, make, "living", long_ago, OLD)
    await keep(store, make, "living", [Message.user("And now?")], YOUNG, first=2)
    report = await store.prune(before=CUTOFF)
    assert (report.sessions, report.bodies) == (1, 0)
    saved = await store.saved_session("living")
    assert (list(saved.messages), saved.missing) == ([*long_ago, Message.user("And now?")], ())


async def test_sessions_are_deleted_in_steps(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "SESSIONS_AT_ONCE", 2)
    monkeypatch.setattr(expiry, "BODIES_AT_ONCE", 3)
    for number in range(7):
        await keep(store, make, f"old {number}", [Message.user(f"Said {number}"), Message.user("Bye")], OLD)
    await keep(store, make, "young", [Message.user("Said 3")], YOUNG)
    report = await store.prune(before=CUTOFF)
    assert (report.sessions, report.bodies) == (7, 7)
    assert count(store, "SELECT count(*) FROM session_messages") == 1
    assert count(store, "SELECT count(*) FROM content") == 2
    assert (await store.messages("young"))[0].text == "Said 3"


async def test_a_pruned_sessions_content_is_gone_from_the_file(store: TraceStore, make: Maker) -> None:
    await keep(store, make, "old", [Message.user([TextBlock("the old secret"), PICTURE, MANUAL])], OLD)
    kept = [Message.user([TextBlock("the young one"), MANUAL])]
    await keep(store, make, "young", kept, YOUNG)
    dry = await store.prune(before=CUTOFF, dry_run=True)
    assert (dry.events, dry.bodies, len(await store.messages("old"))) == (3, 0, 1)
    report = await store.prune(before=CUTOFF)
    # the message and the picture: other sessions share the manual and the setup
    assert (report.sessions, report.bodies) == (1, 2)
    assert await store.saved_session("old") is None
    assert await store.messages("young") == kept
    await store.close()
    for secret in (b"the old secret", PICTURE.data or b""):
        assert secret not in everything(store)


async def test_the_run_that_a_session_belongs_to_keeps_its_number(store: TraceStore, make: Maker) -> None:
    """The run's events may be deleted. Its number still identifies the owner of the session."""
    await keep(store, make, "s", [Message.user("Hi")], OLD)
    later = Maker("run_later")
    await store.write([later(ActorStarted(actor="x"), session_id="s", ts_us=YOUNG)])
    await store.close_lost_runs()
    await store.prune(before=CUTOFF)
    assert await store.session_owner("s", "run_later") == ("run_test", 1)


# A backup is complete and private, has the state of one moment, runs while others write, and overwrites no file.


async def test_a_backup_has_one_moment(
    store: TraceStore, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes during the copy are not in the backup and do not restart it. The backup opens as a store."""
    monkeypatch.setattr(trace_file, "_PAGES_AT_ONCE", 5)
    await store.write([make.started(f"req_{n}") for n in range(400)])
    target = tmp_path / "copy.db"
    seen: list[tuple[int, int]] = []
    more = anyio.Event()

    def told(done: int, pages: int) -> None:
        seen.append((done, pages))
        more.set()

    async def write_on() -> None:
        await more.wait()
        while not target.exists():
            await store.write([make.started("late")])

    async with anyio.create_task_group() as group:
        group.start_soon(write_on)
        await store.backup(target, progress=told)
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert len(await store.events(limit=None)) > 400
    async with TraceStore(target) as copy:
        assert len(await copy.events(limit=None)) == 400
        assert await integrity(copy) == "ok"
        assert await copy.close_lost_runs() == ["run_test"]
        assert {row.status for row in await copy.calls()} == {"failed"}


async def test_a_reader_makes_backups_and_overwrites_nothing(
    store: TraceStore, make: Maker, tmp_path: Path
) -> None:
    """The file of another process is copied without a writing connection."""
    await store.write([make.started()])
    async with TraceStore.open_readonly(store.path) as reader:
        await reader.backup(tmp_path / "copy.db")
    async with TraceStore.open_readonly(tmp_path / "copy.db") as copy:
        assert len(await copy.calls()) == 1
    (tmp_path / "there.db").write_text("mine")
    with pytest.raises(StoreError, match=r"there\.db"):
        await store.backup(tmp_path / "there.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    with pytest.raises(StoreError, match="already"):
        await store.backup(store.path)


async def test_a_failed_or_cancelled_backup_leaves_nothing(
    store: TraceStore, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "_PAGES_AT_ONCE", 5)
    await store.write([make.started(f"req_{n}") for n in range(200)])
    before = sorted(path.name for path in store.path.parent.glob("*"))

    def stop(done: int, pages: int) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError):
        await store.backup(tmp_path / "copy.db", progress=stop)
    with anyio.CancelScope() as scope:
        await store.backup(tmp_path / "copy.db", progress=lambda done, pages: scope.cancel())
    assert scope.cancelled_caught
    with pytest.raises(StoreError, match="nowhere"):
        await store.backup(tmp_path / "nowhere" / "copy.db")
    assert sorted(path.name for path in store.path.parent.glob("*")) == before
    await store.backup(tmp_path / "copy.db")


# Retention in PostgreSQL: months are dropped, and other deletions are refused.


async def test_a_month_before_the_cutoff_is_dropped(postgres_dsn: str, tmp_path: Path) -> None:
    """The partition is dropped as a whole. Its remaining events move to a new partition and keep their numbers."""
    async with PostgresStore(postgres_dsn, path=tmp_path / "trace") as store:

        async def months() -> dict[str, int]:
            names = await store.sql(
                "SELECT inhrelid::regclass::text, inhrelid::bigint FROM pg_inherits"
                " WHERE inhparent = 'events'::regclass AND inhrelid::regclass::text ~ '[0-9]'"
            )
            return dict(names.rows)  # type: ignore[arg-type]

        await fill(store)
        numbered = {event.seq: number for number, event in await store.numbered_events(request_id="req_open")}
        before = await months()
        assert sorted(before) == ["events_202608", "events_202610", "events_202611"]
        await store.prune(before=NOVEMBER)
        after = await months()
        assert sorted(after) == ["events_202608", "events_202611"]
        assert after["events_202608"] != before["events_202608"]
        assert after["events_202611"] == before["events_202611"]
        kept = {event.seq: number for number, event in await store.numbered_events(request_id="req_open")}
        assert kept == numbered


async def test_a_month_with_a_reader_is_emptied(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop waits for a reader for a while. Then the rows are deleted one by one."""
    import psycopg

    monkeypatch.setattr(upkeep, "LOCK_TIMEOUT", "50ms")
    async with PostgresStore(postgres_dsn, path=tmp_path / "trace") as store:
        await fill(store)
        with psycopg.connect(postgres_dsn) as reader:
            reader.execute("SELECT count(*) FROM callboard.events").fetchall()
            report = await store.prune(before=NOVEMBER)
        assert report.events == 8
        assert [event.request_id for event in await store.events()] == ["req_open", "req_4", "req_4"]


async def test_stored_rows_cannot_be_deleted_or_changed(postgres_dsn: str, tmp_path: Path) -> None:
    """For every connection, events, costs and prices are append-only."""
    import psycopg

    async with PostgresStore(postgres_dsn, path=tmp_path / "trace") as store:
        await fill(store)
        with psycopg.connect(postgres_dsn, autocommit=True, options="-c search_path=callboard") as other:
            for sql in (
                *("DELETE FROM events", "DELETE FROM call_cost", "UPDATE call_cost SET cost_nano = 0"),
                *("UPDATE events SET ts_us = 0", "UPDATE price_row SET input = 0"),
            ):
                with pytest.raises(psycopg.Error, match=r"append-only|immutable"):
                    other.execute(sql.encode())
        with pytest.raises(StoreError, match="pg_dump --format=custom") as refused:
            await store.backup(tmp_path / "copy")
    assert postgres_dsn not in str(refused.value)

"""Queries of a trace file, and the rows of events in it."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import Envelope, SessionCreated, SessionTurnStarted, TokenUsage
from callboard.bus import ConfigurationError, StoreError
from callboard.tracestore import CallFilter, Percentiles, TraceStore
from callboard.tracestore.export import Format, exact_usd, export_calls
from callboard.tracestore.sql.batches import Batch
from callboard.tracestore.sql.connection import Insert, SqlValue
from callboard.tracestore.sql.events import JOB_QUERY, RunSpan
from callboard.tracestore.sql.listing import calls_query
from callboard.tracestore.sqlite.database import Row
from callboard.tracestore.sqlite.statements import SQLITE, Statements, statements_for

from .trace_making import DAY_US, T0, Maker, fill, three_calls

# Queries of a trace: filters, sums, statistics, errors and SQL.


def nearest_rank(values: list[float], part: int) -> float | None:
    return sorted(values)[math.ceil(part * len(values) / 100) - 1] if values else None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=40))
async def test_percentiles_are_exact(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[bool, int, int]]
) -> None:
    """In each group, percentiles equal the result of sorting the values."""
    make = Maker()
    batch = []
    for number, (first, wait, rest) in enumerate(calls):
        model = "a:one" if first else "b:two"
        end = make.completed(f"r{number}", model)
        data = msgspec.structs.replace(end.data, first_token_ms=wait, latency_ms=wait + rest)
        batch += [make.started(f"r{number}", model), msgspec.structs.replace(end, data=data)]
    async with TraceStore(tmp_path_factory.mktemp("exact") / "trace.db") as store:
        await store.write(batch)
        rows = {row.key[0]: row for row in await store.statistics()}
        (total,) = await store.statistics(by=())
    for model, first in (("a:one", True), ("b:two", False)):
        chosen = [(wait, rest) for which, wait, rest in calls if which is first]
        if not chosen:
            assert model not in rows
            continue
        measured = {
            "first_token_ms": [float(wait) for wait, _ in chosen],
            "latency_ms": [float(wait + rest) for wait, rest in chosen],
            "tokens_per_second": [round(10_000 / rest, 1) for _, rest in chosen],
        }
        for name, values in measured.items():
            expected = Percentiles(len(values), *(nearest_rank(values, part) for part in (50, 90, 99)))
            assert getattr(rows[model], name) == expected, name
    assert total.latency_ms.p50 == nearest_rank([float(wait + rest) for _, wait, rest in calls], 50)


async def test_the_usual_filters_use_an_index(store: TraceStore) -> None:
    """The newest calls are found without reading or sorting the table. A job is found by an index of jobs."""

    async def plan_of(statement: str, values: Sequence[SqlValue], index: str) -> list[str]:
        plan = [row[3] for row in await store._database.read(f"EXPLAIN QUERY PLAN {statement}", values)]
        (calls,) = [step for step in plan if step.split()[1] == "c"]
        assert f"USING INDEX {index}" in calls, plan
        return plan

    await plan_of(JOB_QUERY, ("openai", "video_1"), "calls_of_jobs (response_id=?)")
    for where, index in (
        (CallFilter(session_id="s1"), "calls_by_session"),
        (CallFilter(since=T0), "calls_by_time"),
        (CallFilter(since=T0, until=T0 + DAY_US, provider="openai"), "calls_by_time"),
        (CallFilter(error_class="rate_limit"), "calls_by_error"),
        (CallFilter(request_id="r1"), "sqlite_autoindex_calls_1"),
        (CallFilter(status="failed"), "calls_by_time"),
        (CallFilter(model="openai:gpt-5"), "calls_by_time"),
    ):
        plan = await plan_of(*calls_query(where, None, 50, SQLITE), index)
        if index in ("calls_by_time", "calls_by_session"):
            assert not any("TEMP B-TREE" in step for step in plan if "ORDER BY" in step and "TERM" not in step), (
                plan
            )
    # one index for the calls of the root turn, and one for the calls below it
    statement, values = calls_query(CallFilter(root_turn_id="trn_1"), None, 50, SQLITE)
    plan = [row[3] for row in await store._database.read(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert [step for step in plan if step.split()[1] == "c"] == [
        "SEARCH c USING INDEX calls_by_root (root_turn_id=?)",
        "SEARCH c USING INDEX calls_by_turn (turn_id=?)",
    ]


async def test_sql_only_reads(store: TraceStore, make: Maker) -> None:
    """Every other statement is refused with a readable error, and the file is unchanged."""
    await three_calls(store, make)
    before = await store.calls()
    reading = "only reading"
    for statement, said in {
        **{"DELETE FROM calls": reading, "CREATE TEMP TABLE t (a)": reading, "BEGIN": reading},
        **{"ATTACH 'other.db' AS other": reading, "VACUUM INTO 'copy.db'": reading},
        **{"PRAGMA query_only = 0": reading, "PRAGMA user_version = 9": reading},
        "SELECT load_extension('x')": "only reading|no such function|not authorized",
        **{"SELECT 1; SELECT 2": "one statement", "SELECT ?": "parameters|bindings", "SELEC 1": "syntax error"},
        "SELECT length(zeroblob(1000000000))": "too big",
    }.items():
        with pytest.raises(StoreError, match=said):
            await store.sql(statement)
        assert await store.calls() == before, statement


async def test_sql_does_not_create_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        await TraceStore.open_readonly(tmp_path / "none.db").sql("SELECT 1")
    assert not (tmp_path / "none.db").exists()


# Events become the same rows in any division into batches, with few statements.


def story() -> list[Envelope]:
    """Two runs with calls that complete, fail, are cancelled, are retried, or are in progress."""
    first, second = Maker("run_a"), Maker("run_b")
    ids = {"session_id": "s1", "turn_id": "t1", "message_id": "m1", "caused_by": "req_0", "tags": {"team": "red"}}
    other = {"session_id": "s2", "tags": {"team": "blue", "env": "test"}}
    usage = TokenUsage(7, 1, raw=msgspec.Raw(b'{"prompt_tokens":7}'))
    return [
        first(SessionCreated(model="openai:gpt-5", tags={"team": "red"}), session_id="s1"),
        first(SessionTurnStarted(model="openai:gpt-5"), session_id="s1", turn_id="t1"),
        first.started("req_1", **ids),
        first.failed("req_1", will_retry=True, **ids),
        first.started("req_1", attempt=2, **ids),
        first.completed("req_1", attempt=2, usage=usage, **ids),
        second(SessionCreated(model="local-chat:smol"), session_id="s2"),
        second.started("req_2", "local-chat:smol", **other),
        second.failed("req_2", "local-chat:smol", error_class="cancelled", usage=usage, **other),
        first.started("req_3"),
        first.completed("req_3"),
        second.started("req_5", operation="embeddings"),
        second.completed("req_5"),
        second.started("req_4", **other),
        second(SessionTurnStarted(model="local-chat:smol"), session_id="s2"),
    ]


QUERIES = {
    "events": "SELECT r.run_id, e.* FROM events AS e JOIN runs AS r ON r.id = e.run ORDER BY r.run_id, e.seq",
    "calls": "SELECT r.run_id, c.* FROM calls AS c JOIN runs AS r ON r.id = c.run ORDER BY request_id, attempt",
    "tags": """
        SELECT t.key, t.value, c.request_id, c.attempt FROM call_tags AS t JOIN calls AS c ON c.id = t.call_id
         ORDER BY 1, 2, 3, 4
    """,
    "sessions": "SELECT * FROM sessions ORDER BY session_id",
    "runs": "SELECT * FROM runs ORDER BY run_id",
}


def tables(path: Path) -> dict[str, list[dict[str, object]]]:
    """All rows of the tables for events, without the numbers that only have the order of insertion."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.row_factory = sqlite3.Row
        return {
            table: [
                {name: row[name] for name in row.keys() if name not in ("id", "run")}  # noqa: SIM118
                for row in file.execute(sql)
            ]
            for table, sql in QUERIES.items()
        }


async def written(path: Path, batches: Sequence[Sequence[Envelope]]) -> dict[str, list[dict[str, object]]]:
    async with TraceStore(path) as store:
        for batch in batches:
            await store.write(batch)
    return tables(path)


@st.composite
def tellings(draw: st.DrawFn) -> list[list[Envelope]]:
    """The story in any order, with repetitions, in any batches."""
    events = story()
    again = draw(st.lists(st.sampled_from(events), max_size=6))
    order = draw(st.permutations([*events, *again]))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1), max_size=6)))
    return [order[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """The rows of the story if each event is a batch, in order."""
    path = tmp_path_factory.mktemp("story") / "trace.db"
    return anyio.run(written, path, [[envelope] for envelope in story()])


@given(telling=tellings())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_and_any_split_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory,
    one_by_one: dict[str, list[dict[str, object]]],
    telling: list[list[Envelope]],
) -> None:
    assert anyio.run(written, tmp_path_factory.mktemp("telling") / "trace.db", telling) == one_by_one


class Written:
    """A replacement for `Statements` that records the inserted rows by table."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def insert(self, insert: Insert, values: list[SqlValue]) -> None:
        for statement, parameters in statements_for(insert, values):
            table = statement.split()[2]
            self.rows[table] = self.rows.get(table, 0) + len(parameters) // len(insert.columns)

    def run(self, sql: str, parameters: list[SqlValue]) -> list[Row]:
        """Return no rows, because there is no repricing."""
        return []


def test_a_column_can_get_its_first_value_in_a_later_row() -> None:
    """A column without any value is left out of the statement until a row has a value."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (name UNIQUE, first, second)")
    keep_first = (
        "ON CONFLICT (name) DO UPDATE SET first = coalesce(t.first, excluded.first), second = excluded.second"
    )
    insert = Insert("t", ("name", "first", "second"), keep_first)
    statements, seen = Statements(connection), []
    statements.insert(insert, [])
    for rows in (["a", None, None, "b", None, None], ["a", None, 5], ["a", 7, None], ["c", 1, 2]):
        statements.insert(insert, rows)
        seen.append(statements.run("SELECT * FROM t ORDER BY name"))
    connection.close()
    nothing, second = ("b", None, None), ("a", None, 5)
    assert seen[0] == [("a", None, None), nothing]
    assert seen[1] == [second, nothing]
    assert seen[2] == [("a", 7, None), nothing]
    assert seen[3] == [("a", 7, None), nothing, ("c", 1, 2)]


async def test_a_call_that_starts_and_ends_in_one_batch_is_one_row_written_once(make: Maker) -> None:
    """Eight quick calls are eight inserted rows. No row is changed afterwards."""

    def number_of(run: RunSpan) -> int:
        return 1

    batch = [end for n in range(8) for end in (make.started(f"req_{n}"), make.completed(f"req_{n}"))]
    statements = Written()
    Batch.of(batch).write(statements, number_of)  # type: ignore[arg-type]
    assert statements.rows == {"events": 16, "calls": 8}


@given(rows=st.integers(0, 400), width=st.integers(1, 13))
def test_every_row_is_inserted_with_few_statements(rows: int, width: int) -> None:
    """Rows are in order, and only the last row is repeated, for at most a third more."""
    insert = Insert("t", tuple(f"c{n}" for n in range(width)), "ON CONFLICT DO NOTHING")
    values: list[SqlValue] = list(range(rows * width))
    brought: list[SqlValue] = []
    statements = 0
    for statement, parameters in statements_for(insert, values):
        assert statement.count("?") == len(parameters)
        brought += parameters
        statements += 1
    assert brought[: len(values)] == values
    assert brought[len(values) :] == values[-width:] * ((len(brought) - len(values)) // width)
    assert len(brought) <= len(values) * 4 / 3
    assert statements <= rows // 64 + 4


async def test_a_value_of_the_wrong_kind_is_a_value_error(store: TraceStore, make: Maker) -> None:
    """A value that the tables refuse is no failure of the file. No event of its batch is written."""
    event = msgspec.structs.replace(make.completed("bad").data, latency_ms=7, provider=None)
    for bad in (make(event, request_id="bad"), make(event, request_id=object())):
        with pytest.raises(Exception, match=r"NOT NULL|bind") as caught:
            await store.write([make.started("good"), bad])
        assert isinstance(caught.value, ValueError)
    assert await store.events() == []
    await store.write([make.started("good")])
    assert [row.request_id for row in await store.calls(CallFilter(status="started"))] == ["good"]


async def test_calls_can_be_filtered_and_grouped_by_operation(store: TraceStore, make: Maker) -> None:
    """A call without a start counts as a conversation, like the calls of earlier versions."""
    await store.write([make.completed("b"), make.started("a", operation="embeddings"), make.completed("a")])
    await store.write([make.started("c"), make.completed("c")])
    kinds = {row.request_id: row.operation for row in await store.calls()}
    assert kinds == {"a": "embeddings", "b": "chat", "c": "chat"}
    assert [row.request_id for row in await store.calls(CallFilter(operation="embeddings"))] == ["a"]
    assert {row.request_id for row in await store.calls(CallFilter(operation="chat"))} == {"b", "c"}
    costs = await store.costs(by=("operation",))
    assert sorted((row.key, row.calls) for row in costs) == [(("chat",), 2), (("embeddings",), 1)]


# Calls as CSV, JSON lines and Parquet: every row, exact amounts, bounded memory, and complete files or none.


def names_in(folder: Path) -> list[str]:
    """The names of files other than SQLite's own."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(("trace.db-", "trace.db.")))


@given(st.integers(-(2**63), 2**63 - 1))
def test_exact_usd_is_exact(nano_usd: int) -> None:
    text = exact_usd(nano_usd)
    assert Decimal(text) * 10**9 == nano_usd
    assert len(text.partition(".")[2]) == 9


async def test_parquet_names_its_extra(store: TraceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"callboard\[parquet\]"):
        await export_calls(store, tmp_path / "calls.parquet", "parquet")
    assert names_in(tmp_path) == ["trace.db"]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
async def test_an_export_that_fails_leaves_the_old_file(
    store: TraceStore, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    await fill(store, make, 5)
    target = tmp_path / "calls.out"
    await export_calls(store, target, format, page=2)
    before = target.read_bytes()
    read, pages = store.calls_after, 0

    async def failing(*arguments: object, **options: object) -> object:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise StoreError("the disk is gone")
        return await read(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "calls_after", failing)
    with pytest.raises(StoreError):
        await export_calls(store, target, format, page=2)
    assert target.read_bytes() == before
    assert names_in(tmp_path) == ["calls.out", "trace.db"]
    assert target.stat().st_mode & 0o077 == 0

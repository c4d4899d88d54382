"""What can be asked of a trace: filters, sums, statistics, errors and free SQL."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus import StoreError
from callboard.tracestore import CallFilter, Percentiles, TraceStore
from callboard.tracestore.sql.events import JOB_QUERY
from callboard.tracestore.sql.listing import calls_query
from callboard.tracestore.sqlite.statements import SQLITE

from .trace_making import DAY_US, T0, Maker, three_calls

pytestmark = pytest.mark.anyio


def nearest_rank(values: list[float], part: int) -> float | None:
    return sorted(values)[math.ceil(part * len(values) / 100) - 1] if values else None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=40))
async def test_percentiles_are_exact(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[bool, int, int]]
) -> None:
    """They are what sorting the values gives, in each group."""
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


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (CallFilter(session_id="s1"), "calls_by_session"),
        (CallFilter(since=T0), "calls_by_time"),
        (CallFilter(since=T0, until=T0 + DAY_US, provider="openai"), "calls_by_time"),
        (CallFilter(error_class="rate_limit"), "calls_by_error"),
        (CallFilter(request_id="r1"), "sqlite_autoindex_calls_1"),
        (CallFilter(status="failed"), "calls_by_time"),
        (CallFilter(model="openai:gpt-5"), "calls_by_time"),
    ],
)
async def test_the_usual_filters_use_an_index(store: TraceStore, where: CallFilter, index: str) -> None:
    """The newest calls are found without reading the table and without sorting it."""
    sql, values = calls_query(where, None, 50, SQLITE)
    plan = [row[3] for row in await store._database.read(f"EXPLAIN QUERY PLAN {sql}", values)]
    (calls,) = [step for step in plan if step.split()[1] == "c"]
    assert f"USING INDEX {index}" in calls, plan
    if index == "calls_by_time" or index == "calls_by_session":
        assert not any("TEMP B-TREE" in step for step in plan if "ORDER BY" in step and "TERM" not in step), plan


async def test_a_job_is_found_among_millions_of_calls(store: TraceStore) -> None:
    """By an index that has only the calls of jobs."""
    plan = [row[3] for row in await store._database.read(f"EXPLAIN QUERY PLAN {JOB_QUERY}", ("openai", "video_1"))]
    (calls,) = [step for step in plan if step.split()[1] == "c"]
    assert "USING INDEX calls_of_jobs (response_id=?)" in calls, plan


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM calls", "only reading"),
        ("CREATE TEMP TABLE t (a)", "only reading"),
        ("ATTACH 'other.db' AS other", "only reading"),
        ("PRAGMA query_only = 0", "only reading"),
        ("PRAGMA user_version = 9", "only reading"),
        ("SELECT load_extension('x')", "only reading|no such function|not authorized"),
        ("BEGIN", "only reading"),
        ("VACUUM INTO 'copy.db'", "only reading"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT ?", "parameters|bindings"),
        ("SELEC 1", "syntax error"),
        ("SELECT length(zeroblob(1000000000))", "too big"),
    ],
)
async def test_sql_does_nothing_but_read(store: TraceStore, make: Maker, statement: str, said: str) -> None:
    """Whatever it is, it is refused in words, and the file stays as it was."""
    await three_calls(store, make)
    before = await store.calls()
    with pytest.raises(StoreError, match=said):
        await store.sql(statement)
    assert await store.calls() == before


async def test_a_file_that_is_not_there_is_not_made_by_asking(tmp_path: Path) -> None:
    """SQL on a missing file is a StoreError."""
    with pytest.raises(StoreError):
        await TraceStore.open_readonly(tmp_path / "none.db").sql("SELECT 1")
    assert not (tmp_path / "none.db").exists()

"""Unknown is a number of its own: what every sum over stored calls says of calls that got no answer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.values.cost_sum import CostSum, usage_is_unknown
from bus.values.usage import Cost, CostSource, TokenUsage, UsageSource
from tracestore import CallFilter, PriceRow, PriceTable, TraceStore
from tracestore.sql.calls.sums import sum_up
from tracestore.timestamps import iso_day

from .trace_making import T0, Maker, make_file_before

pytestmark = pytest.mark.anyio

TABLE = PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second")
UNPRICED = Cost(None, CostSource.UNPRICED, "000000000000", "no price")
ESTIMATE = TokenUsage(7, 3, source=UsageSource.ESTIMATED)
COUNTS = {"calls": 10, "estimated": 1, "unpriced": 1, "unknown": 5}


async def a_faulty_day(store: TraceStore, make: Maker) -> None:
    """Ten calls: one well, one unpriced, one estimated, two refused, and five of which nobody knows anything."""
    of = {"session_id": "s"}
    await store.write(
        [
            make.started("well", **of),
            make.completed("well", **of),
            make.started("unpriced", "other:thing", **of),
            make.completed("unpriced", "other:thing", cost=UNPRICED, **of),
            make.started("estimated", **of),
            make.failed("estimated", usage=ESTIMATE, cost=Cost(5, CostSource.COMPUTED, "000000000000"), **of),
            make.failed("refused", error_class="auth", provider_status=401, **of),
            make.failed("too many", error_class="rate_limit", provider_status=429, **of),
            make.failed("cancelled", error_class="cancelled", provider_status=None, **of),
            make.failed("timed out", error_class="network", provider_status=None, **of),
            make.failed("broke off", error_class="server_error", provider_status=None, **of),
            make.failed("lost", error_class="process_lost", provider_status=None, **of),
            make.started("runs", **of),
        ]
    )


@pytest.mark.parametrize("summed", [False, True], ids=["as they come", "summed up"])
async def test_every_sum_counts_what_it_doesnt_know(store: TraceStore, make: Maker, summed: bool) -> None:
    """Sums by any key, statistics and sessions say the same four counts; nothing unknown is in an amount."""
    await a_faulty_day(store, make)
    if summed:
        await store._database.write(sum_up)
    for by in ((), ("provider",), ("session_id",), ("status",)):
        rows = await store.costs(by=by)
        assert {name: sum(getattr(row, name) for row in rows) for name in COUNTS} == COUNTS
        assert sum(row.cost_nano_usd for row in rows) == 1234 + 5
    (statistics,), (session,) = await store.statistics(by=()), await store.sessions()
    assert {name: getattr(session, name) for name in COUNTS} == COUNTS
    assert (statistics.attempts, statistics.estimated, statistics.unpriced, statistics.unknown) == (10, 1, 1, 5)


async def test_unknown_calls_can_be_asked_for(store: TraceStore, make: Maker) -> None:
    """By a filter; and each row says it of itself."""
    await a_faulty_day(store, make)
    unknown = {"cancelled", "timed out", "broke off", "lost", "runs"}
    assert {row.request_id for row in await store.calls(CallFilter(unknown=True))} == unknown
    rows = await store.calls()
    assert {row.request_id for row in rows if row.unknown} == unknown
    assert sum((row.sum for row in rows), CostSum()) == CostSum(1239, **COUNTS)


async def test_a_repricing_says_what_it_could_not_know(store: TraceStore, make: Maker) -> None:
    """In its report, line by line, and in the history; dry or not, whole or filtered."""
    await a_faulty_day(store, make)
    for dry in (True, False):
        report = await store.reprice(TABLE, dry_run=dry, by_session=True)
        assert (report.calls, report.estimated, report.unpriced, report.unknown) == (3, 1, 1, 5)
        for lines in (report.models, report.days, report.sessions):
            assert (sum(line.estimated for line in lines), sum(line.unknown for line in lines)) == (1, 5)
    filtered = await store.reprice(TABLE, where=CallFilter(model="other:thing"), dry_run=True)
    assert (filtered.calls, filtered.estimated, filtered.unknown) == (1, 0, 0)
    (run,) = await store.reprice_runs()
    assert (run.estimated, run.unknown) == (1, 5)


async def test_counts_beside_a_repricing_read_few_calls(store: TraceStore, make: Maker) -> None:
    """They have indexes of their own, so a million calls that are known cost nothing."""
    from tracestore.sql.repricing.counts import _WHICH

    await a_faulty_day(store, make)
    for which in _WHICH.values():
        sql = f"EXPLAIN QUERY PLAN SELECT c.model, count(*) FROM calls AS c WHERE {which} GROUP BY 1"
        with closing(sqlite3.connect(store.path)) as file:
            plan = str(file.execute(sql).fetchall())
        assert "INDEX calls_" in plan, plan


async def test_a_lost_call_is_estimated_by_what_was_sent(tmp_path: Path, make: Maker) -> None:
    """Its start says how much that was; it is priced for its own moment, and without that figure it is unknown."""
    path = tmp_path / "t.db"
    async with TraceStore(path) as store:
        await store.write([make.started("known", estimated_input_tokens=40), make.started("unknown")])
    async with TraceStore(path) as store:
        assert await store.close_lost_runs(TABLE) == ["run_test"]
        rows = {row.request_id: row for row in await store.calls()}
        (total,) = await store.costs(by=())
    known, unknown = rows["known"], rows["unknown"]
    assert (known.error_class, known.usage) == ("process_lost", TokenUsage(40, source=UsageSource.ESTIMATED))
    assert known.cost == Cost(40 * 3000, CostSource.COMPUTED, TABLE.version)
    assert (unknown.usage, unknown.unknown) == (None, True)
    assert total.cost_nano_usd == 120_000
    assert (total.calls, total.estimated, total.unpriced, total.unknown) == (2, 1, 0, 1)


async def test_a_file_of_an_earlier_version_counts_its_unknown_calls(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it has summed up already, too."""
    path, new = tmp_path / "old.db", tmp_path / "new.db"
    async with TraceStore(new) as store:
        await a_faulty_day(store, make)
    await make_file_before("calls of unknown cost", path, monkeypatch)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("ATTACH ? AS new", (str(new),))
        for table in ("runs", "events", "calls", "sessions"):
            columns = ", ".join(name for _, name, *_ in file.execute(f"PRAGMA main.table_info({table})"))
            file.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new.{table}")
        file.execute("UPDATE summed_calls SET up_to = 4")
        file.execute("INSERT INTO call_sums SELECT day, provider, model, count(*), 0, 0, 0, 0, 0, 0, 0, 0 "
                     "FROM calls WHERE id <= 4 GROUP BY 1, 2, 3")  # fmt: skip
    async with TraceStore(path) as store:
        (total,) = await store.costs(by=())
    assert {name: getattr(total, name) for name in COUNTS} == COUNTS


@pytest.mark.parametrize(
    ("error_class", "status", "unknown"),
    [
        ("network", None, True),
        ("network", 504, True),
        ("cancelled", None, True),
        ("process_lost", None, True),
        ("server_error", None, True),
        ("server_error", 503, False),
        ("other", None, True),
        ("auth", 401, False),
        ("rate_limit", None, False),
        ("invalid_request", None, False),
        ("context_overflow", 400, False),
    ],
)
def test_a_call_without_an_answer_may_have_used_something(
    error_class: str, status: int | None, unknown: bool
) -> None:
    """One that was refused, or never sent, has not."""
    assert usage_is_unknown(error_class, status) is unknown


async def test_an_absurd_clock_is_no_obstacle(store: TraceStore, make: Maker) -> None:
    """Sums by day and reports are had all the same; such days have a sign and as many digits as they need."""
    far = 2**62
    for name, moment in (("far", far), ("back", -far), ("now", T0)):
        await store.write([make.completed(name, ts_us=moment)])
    days = {row.key[0]: row.calls for row in await store.costs(by=("day",))}
    assert days == {"+148108-07-06": 1, "-144169-06-28": 1, "2026-09-21": 1}
    report = await store.reprice(TABLE)
    assert {line.day for line in report.days} == set(days)


@given(st.integers(-700_000, 2_900_000))
def test_a_day_is_its_iso_date(day: int) -> None:
    """As the calendar of the standard library has it, as far as that goes."""
    assert iso_day(day) == (date(1970, 1, 1) + timedelta(days=day)).isoformat()
    assert iso_day(day + 400 * 146_097).endswith(iso_day(day)[4:])

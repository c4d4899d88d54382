"""Unknown is a number of its own: what every sum over stored calls says of calls that got no answer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus.values.usage import Cost, CostSource, TokenUsage, UsageSource, usage_is_unknown
from callboard.tracestore import PriceRow, PriceTable, TraceStore
from callboard.tracestore.timestamps import iso_day

from .contract.test_unknown_costs import COUNTS, a_faulty_day
from .trace_making import Maker, make_file_before

pytestmark = pytest.mark.anyio

TABLE = PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second")
UNPRICED = Cost(None, CostSource.UNPRICED, "000000000000", "no price")
ESTIMATE = TokenUsage(7, 3, source=UsageSource.ESTIMATED)


async def test_counts_beside_a_repricing_read_few_calls(store: TraceStore, make: Maker) -> None:
    """They have indexes of their own, so a million calls that are known cost nothing."""
    from callboard.tracestore.sql.comparison import _WHICH

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


@given(st.integers(-700_000, 2_900_000))
def test_a_day_is_its_iso_date(day: int) -> None:
    """As the calendar of the standard library has it, as far as that goes."""
    assert iso_day(day) == (date(1970, 1, 1) + timedelta(days=day)).isoformat()
    assert iso_day(day + 400 * 146_097).endswith(iso_day(day)[4:])

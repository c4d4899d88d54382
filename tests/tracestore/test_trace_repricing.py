"""Repricings of a trace file, and the stored sums of its calls."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus import Envelope, StoreError
from callboard.bus.clock import iso_day
from callboard.bus.values.usage import Cost, CostSource, TokenUsage, UsageSource, usage_is_unknown
from callboard.tracestore import CallFilter, PriceRow, PriceTable, TraceStore
from callboard.tracestore.sql import listing as cost_queries
from callboard.tracestore.sql import repricing
from callboard.tracestore.sql import sums as sum_keeping
from callboard.tracestore.sql.connection import Row, SqlValue
from callboard.tracestore.sql.sums import sum_up
from callboard.tracestore.sqlite.statements import Statements

from .contract.test_queries import COUNTS, a_faulty_day
from .contract.test_repricing import FIRST, SECOND, fill
from .trace_making import DAY_US, T0, Maker, copy_by_version, make_file_before, sql

# The list of repricings: killed and resumed, undone, and their reports.

DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.tracestore.contract.test_repricing import SECOND
from callboard.tracestore import TraceStore
from callboard.tracestore.sql import repricing

repricing.CHUNK = 3

def die(done, last):
    if done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with TraceStore(Path(sys.argv[1])) as store:
        await store.reprice(SECOND, by_session=sys.argv[3] == "sessions", progress=die)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("dies_at", "over", "by"),
    [
        (9, FIRST, "sessions"),
        pytest.param(3, None, "sessions", marks=pytest.mark.deep("another moment of the death")),
        pytest.param(6, FIRST, "all", marks=pytest.mark.deep("another moment of the death")),
    ],
)
async def test_a_killed_repricing_is_resumed_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int, over: PriceTable | None, by: str
) -> None:
    """After kill -9 no cost has changed. After resuming, rows and report equal those of an uninterrupted
    repricing.
    """
    for name in ("whole.db", "killed.db"):
        async with TraceStore(tmp_path / name) as store:
            await fill(store, Maker(), 10)
            if over is not None:
                await store.reprice(over)
    command = [sys.executable, "-c", DIES, str(tmp_path / "killed.db"), str(dies_at), by]
    died = await anyio.run_process(command, check=False)
    assert died.returncode == -9
    monkeypatch.setattr(repricing, "CHUNK", 3)
    async with TraceStore(tmp_path / "whole.db") as whole, TraceStore(tmp_path / "killed.db") as killed:
        run, *_ = await killed.reprice_runs()
        assert (run.state, run.done, run.last_call) == ("interrupted", dies_at, 11)
        assert await killed.current_version() == (over and over.version)
        seen: list[tuple[int, int]] = []
        resumed = await killed.resume_reprice(progress=lambda *at: seen.append(at))
        assert seen[0] == (dies_at + 3 if dies_at + 3 < 11 else 11, 11), "what was done is not done again"
        assert resumed == await whole.reprice(SECOND, by_session=by == "sessions")
        assert await killed.calls() == await whole.calls()
        with pytest.raises(StoreError, match="no interrupted repricing"):
            await killed.resume_reprice()


# The stored sums of a file equal those of its calls after any change.

ENDINGS = [("server_error", 503), ("server_error", None), ("network", None), ("cancelled", None), ("auth", 401)]
MODELS = ("openai:gpt-5", "openai:gpt-5-mini", "other:thing")
SUM_TABLES = [
    PriceTable([PriceRow(model="openai:*", input=rate * 1_000_000, output=rate * 2_000_000)], f"table {rate}")
    for rate in (1, 2, 3)
]
BY = ((), ("model",), ("provider",), ("day",), ("day", "provider", "model"), ("model", "day"))


@contextlib.contextmanager
def call_by_call() -> Iterator[None]:
    """In the block, no sum comes from the stored sums."""

    def never(*_: object) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_queries, "_from_sums", never)
        yield


async def assert_in_step(store: TraceStore, wheres: list[CallFilter]) -> None:
    """Assert that each stored grouping equals the sum over single calls, under each version."""
    versions = [None, "none-such", *(table.version for table in SUM_TABLES)]
    for where in wheres:
        for by in BY:
            for under in versions:
                kept = await store.costs(where, by, under=under)
                with call_by_call():
                    assert kept == await store.costs(where, by, under=under), (where, by, under)


summed_moments = st.integers(0, 4 * 24 * 4).map(lambda quarter: T0 + quarter * DAY_US // 96)
costs = st.none() | st.integers(0, 10**9).map(lambda nano: Cost(nano, CostSource.COMPUTED, "0123456789ab"))
usages = st.builds(
    TokenUsage,
    st.integers(0, 999),
    st.integers(0, 99),
    st.integers(0, 999),
    st.integers(0, 9),
    source=st.sampled_from(list(UsageSource)),
)
filters = st.builds(
    CallFilter,
    since=st.none() | summed_moments | summed_moments.map(lambda moment: moment // DAY_US * DAY_US),
    until=st.none() | summed_moments | summed_moments.map(lambda moment: moment // DAY_US * DAY_US),
    provider=st.sampled_from([None, None, "openai", "nobody"]),
    model=st.sampled_from([None, None, "openai:*", "gpt-5", "other:thing"]),
)
summed_calls = st.tuples(
    st.integers(0, 15), st.sampled_from(["start", "end", "both", "fail"]), summed_moments, usages, costs
)
sum_steps = st.one_of(
    st.tuples(st.just("write"), st.lists(summed_calls, min_size=1, max_size=6)),
    st.tuples(st.just("write"), st.lists(summed_calls, min_size=1, max_size=6)),
    st.tuples(st.just("sum up"), st.none()),
    st.tuples(st.just("reprice"), st.tuples(st.sampled_from(SUM_TABLES), st.none() | filters)),
    st.tuples(st.just("undo"), st.none()),
    st.tuples(st.just("use"), st.none() | st.sampled_from(SUM_TABLES)),
    st.tuples(st.just("prune"), summed_moments),
)


def events(make: Maker, call: tuple[int, str, int, TokenUsage, Cost | None]) -> list[Envelope]:
    """A start, an end or both. Events of one call may contradict each other about its time."""
    number, which, moment, usage, cost = call
    request, model = f"req_{number}", MODELS[number % len(MODELS)]
    start = make.started(request, model, ts_us=moment)
    if which == "fail":
        error_class, status = ENDINGS[number % len(ENDINGS)]
        about = {"error_class": error_class, "provider_status": status, "usage": usage if number % 2 else None}
        return [make.failed(request, model, ts_us=moment, cost=cost, **about)]
    end = make.completed(request, model, ts_us=moment + DAY_US // 3, usage=usage, cost=cost)
    return {"start": [start], "end": [end], "both": [start, end]}[which]


@given(story=st.lists(sum_steps, min_size=2, max_size=14), wheres=st.lists(filters, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_sums_are_those_of_the_calls_after_any_change(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, object]], wheres: list[CallFilter]
) -> None:
    """Calls are written in any order, changed by late events, repriced, undone, chosen and pruned."""
    make = Maker()
    async with TraceStore(tmp_path_factory.mktemp("sums") / "t.db") as store:
        for step, detail in story:
            match step, detail:
                case "write", list(written):
                    await store.write([event for call in written for event in events(make, call)])
                case "sum up", _:
                    await store._database.write(sum_up)
                case "reprice", (PriceTable() as table, where):
                    await store.reprice(table, where=where)  # type: ignore[arg-type]
                case "undo", _:
                    with contextlib.suppress(StoreError):  # if there is no repricing to undo
                        await store.undo_reprice()
                case "use", table:
                    with contextlib.suppress(StoreError):  # if that table was never used
                        await store.use_prices(table.version if isinstance(table, PriceTable) else None)
                case "prune", int(before):
                    await store.prune(before=before)
        await assert_in_step(store, [CallFilter(), *wheres])


async def fill_days(store: TraceStore, make: Maker, count: int) -> None:
    for number in range(count):
        model = MODELS[number % 2]
        at = T0 + number * DAY_US // 2
        request, cost = f"r{number}", Cost(10 + number, CostSource.COMPUTED, "0123456789ab")
        ids = {"session_id": "s", "ts_us": at}
        await store.write([make.started(request, model, **ids), make.completed(request, model, cost=cost, **ids)])


async def test_costs_are_read_from_the_sums(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole days come from the stored sums. Calls are added up for a day that the filter cuts, and for other
    groupings.
    """
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 1)
    await fill_days(store, make, 8)
    sql(store.path, "UPDATE call_sums SET calls = 100")

    async def counted(where: CallFilter, *by: str) -> int:
        return sum(row.calls for row in await store.costs(where, by))

    day = T0 // DAY_US * DAY_US
    groups = len(sql(store.path, "SELECT * FROM call_sums"))
    assert await counted(CallFilter()) == await counted(CallFilter(), "model", "day") == 100 * groups
    assert await counted(CallFilter(), "session_id") == await counted(CallFilter(session_id="s"), "model") == 8
    assert await counted(CallFilter(since=T0 + 1, until=T0 + DAY_US // 2)) == 0, "not even the first, nor the next"
    whole = await counted(CallFilter(since=day + DAY_US, until=day + 2 * DAY_US))
    assert whole == 100 * len(sql(store.path, f"SELECT * FROM call_sums WHERE day = {day // DAY_US + 1}"))
    with_edges = CallFilter(since=day + 1, until=day + 2 * DAY_US + 1)
    first_day = sql(store.path, f"SELECT count(*) FROM calls WHERE day = {day // DAY_US}")[0][0]
    assert await counted(with_edges) == whole + first_day  # type: ignore[operator]


async def test_enough_new_calls_are_summed_up(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of earlier, short-lived writers are included: the first write of a store counts the waiting calls."""
    await fill_days(store, make, 3)
    assert sql(store.path, "SELECT up_to FROM summed_calls") == [(0,)]
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 4)
    async with TraceStore(store.path) as second:
        await second.write([make.started("one more")])
    assert sql(store.path, "SELECT up_to FROM summed_calls") == [(4,)]
    assert sql(store.path, "SELECT sum(calls), sum(cost_nano) FROM call_sums") == [(4, 33)]


async def test_failed_sums_lose_no_event(store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are not part of the transaction that stores events, and costs are correct without them."""
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 1)
    sql(store.path, "CREATE TRIGGER no BEFORE INSERT ON call_sums BEGIN SELECT RAISE(ABORT, 'no'); END")
    await fill_days(store, make, 3)
    (row,) = await store.costs(by=())
    assert (row.calls, row.cost_nano_usd) == (3, 33)
    sql(store.path, "DROP TRIGGER no")
    await store.write([make.started("one more")])
    assert sql(store.path, "SELECT up_to FROM summed_calls") == [(4,)]


# Costs belong to the repricing that set them, also in files of earlier versions and in the stored sums.

BOOK = """
    DELETE FROM reprice_run;
    INSERT INTO reprice_run (id, version, filter, started_us, finished_us, last_call, done, replaced) VALUES
        (1, '{first}', '{{}}', 1, 2, 4, 4, '[]'),
        (2, '{second}', '{{}}', 3, 4, 4, 4, '["{first}"]'),
        (3, '{first}', '{{"session_id":"s1"}}', 5, 6, 4, 4, '["{second}","{first}"]'),
        (4, '{second}', '{{}}', 7, NULL, 4, 3, NULL);
    DELETE FROM current_version;
    INSERT INTO current_version (position, version) VALUES (0, '{first}'), (1, '{second}');
"""


async def test_costs_by_version_are_kept(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The costs of a version become those of its latest run, which can be undone."""
    path = tmp_path / "old.db"
    async with TraceStore(tmp_path / "new.db") as new:
        await fill(new, make)
        await new.reprice(FIRST)
        under_first = await new.calls()
        await new.reprice(SECOND)
        under_second = await new.calls()
    await make_file_before("costs of runs", path, monkeypatch)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("ATTACH ? AS new", (str(new.path),))
        copy_by_version(file)
        for table in ("price_row", "price_alias"):
            file.execute(f"INSERT INTO {table} SELECT * FROM new.{table}")
        file.executescript(BOOK.format(first=FIRST.version, second=SECOND.version))
    async with TraceStore(path) as store:
        assert await store.calls() == under_first, "the first of the current versions covers all"
        await assert_in_step(store, [CallFilter()])
        assert (await store.undo_reprice()).id == 3
        assert await store.calls() == under_second
        report = await store.resume_reprice(4)
        assert (report.calls, report.sum_before_nano_usd) == (4, report.sum_after_nano_usd)
        await assert_in_step(store, [CallFilter()])


async def test_a_wrong_report_is_rolled_back(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last transaction compares the total cost before and after with the report, and raises if they differ."""
    await fill(store, make)
    await store.reprice(FIRST)
    before, current = await store.calls(), await store.current_prices()
    monkeypatch.setattr(repricing, "add_repriced", lambda *_: None)
    with pytest.raises(StoreError, match=r"would change the current costs by .* Nothing was changed"):
        await store.reprice(SECOND)
    assert await store.calls() == before
    assert (await store.current_prices()).runs == current.runs


async def test_calls_that_end_together_need_few_parameters(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite before 3.32 accepts at most 999 parameters in a statement."""
    names = [f"late_{number}" for number in range(600)]
    await store.write([make.started(name) for name in names])
    await store.reprice(FIRST)
    parameters: list[int] = []

    def run(self: Statements, sql: str, values: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        parameters.append(len(values))
        return plain(self, sql, values)

    plain = Statements.run
    monkeypatch.setattr(Statements, "run", run)
    await store.write([make.completed(name) for name in names])
    assert 400 < max(parameters) <= 999
    assert {row.cost.pricing_version for row in await store.calls() if row.cost is not None} == {FIRST.version}


# Unknown costs are counted separately in every sum over calls.

TABLE = PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second")
UNPRICED = Cost(None, CostSource.UNPRICED, "000000000000", "no price")


async def test_counts_of_a_repricing_read_few_calls(store: TraceStore, make: Maker) -> None:
    from callboard.tracestore.sql.comparison import _WHICH

    await a_faulty_day(store, make)
    for which in _WHICH.values():
        sql = f"EXPLAIN QUERY PLAN SELECT c.model, count(*) FROM calls AS c WHERE {which} GROUP BY 1"
        with closing(sqlite3.connect(store.path)) as file:
            plan = str(file.execute(sql).fetchall())
        assert "INDEX calls_" in plan, plan


async def test_a_lost_call_is_estimated_from_its_input(tmp_path: Path, make: Maker) -> None:
    """The start has the estimated input. The call is priced for its own time."""
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


async def test_old_unknown_calls_are_counted(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_call_without_an_answer_may_have_used_something() -> None:
    """A refused call and a call that was never sent used nothing."""
    unknown: list[tuple[str, int | None]] = [("network", None), ("network", 504), ("server_error", None)]
    unknown += [(each, None) for each in ("cancelled", "process_lost", "other")]
    known = [("server_error", 503), ("auth", 401), ("rate_limit", None), ("invalid_request", None)]
    for error_class, status in [*unknown, *known, ("context_overflow", 400)]:
        assert usage_is_unknown(error_class, status) is ((error_class, status) in unknown)


@given(st.integers(-700_000, 2_900_000))
def test_a_day_is_its_iso_date(day: int) -> None:
    assert iso_day(day) == (date(1970, 1, 1) + timedelta(days=day)).isoformat()
    assert iso_day(day + 400 * 146_097).endswith(iso_day(day)[4:])

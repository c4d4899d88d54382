"""The sums that a file keeps are those of its calls, whatever was done to them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus import Cost, CostSource, Envelope, StoreError, TokenUsage, UsageSource
from callboard.tracestore import CallFilter, CostRow, PriceRow, PriceTable, TraceStore
from callboard.tracestore.sql import costs as cost_queries
from callboard.tracestore.sql import sums as sum_keeping
from callboard.tracestore.sql.sums import sum_up

from .trace_making import DAY_US, T0, Maker, copy_by_version, make_file_before, sql

pytestmark = pytest.mark.anyio

ENDINGS = [("server_error", 503), ("server_error", None), ("network", None), ("cancelled", None), ("auth", 401)]
MODELS = ("openai:gpt-5", "openai:gpt-5-mini", "other:thing")
TABLES = [
    PriceTable([PriceRow(model="openai:*", input=rate * 1_000_000, output=rate * 2_000_000)], f"table {rate}")
    for rate in (1, 2, 3)
]
BY = ((), ("model",), ("provider",), ("day",), ("day", "provider", "model"), ("model", "day"))


@contextlib.contextmanager
def call_by_call() -> Iterator[None]:
    """Inside, no sum is taken from what the file keeps."""

    def never(*_: object) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_queries, "_from_sums", never)
        yield


async def assert_in_step(store: TraceStore, wheres: list[CallFilter]) -> None:
    """Every grouping that sums are kept for says under each version what the calls say, one by one."""
    versions = [None, "none-such", *(table.version for table in TABLES)]
    for where in wheres:
        for by in BY:
            for under in versions:
                kept = await store.costs(where, by, under=under)
                with call_by_call():
                    assert kept == await store.costs(where, by, under=under), (where, by, under)


moments = st.integers(0, 4 * 24 * 4).map(lambda quarter: T0 + quarter * DAY_US // 96)
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
    since=st.none() | moments | moments.map(lambda moment: moment // DAY_US * DAY_US),
    until=st.none() | moments | moments.map(lambda moment: moment // DAY_US * DAY_US),
    provider=st.sampled_from([None, None, "openai", "nobody"]),
    model=st.sampled_from([None, None, "openai:*", "gpt-5", "other:thing"]),
)
calls = st.tuples(st.integers(0, 15), st.sampled_from(["start", "end", "both", "fail"]), moments, usages, costs)
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(calls, min_size=1, max_size=6)),
    st.tuples(st.just("write"), st.lists(calls, min_size=1, max_size=6)),
    st.tuples(st.just("sum up"), st.none()),
    st.tuples(st.just("reprice"), st.tuples(st.sampled_from(TABLES), st.none() | filters)),
    st.tuples(st.just("undo"), st.none()),
    st.tuples(st.just("use"), st.none() | st.sampled_from(TABLES)),
    st.tuples(st.just("prune"), moments),
)


def events(make: Maker, call: tuple[int, str, int, TokenUsage, Cost | None]) -> list[Envelope]:
    """A start, an end or both. Those of one call may contradict each other about when it was."""
    number, which, moment, usage, cost = call
    request, model = f"req_{number}", MODELS[number % len(MODELS)]
    start = make.started(request, model, ts_us=moment)
    if which == "fail":
        error_class, status = ENDINGS[number % len(ENDINGS)]
        about = {"error_class": error_class, "provider_status": status, "usage": usage if number % 2 else None}
        return [make.failed(request, model, ts_us=moment, cost=cost, **about)]
    end = make.completed(request, model, ts_us=moment + DAY_US // 3, usage=usage, cost=cost)
    return {"start": [start], "end": [end], "both": [start, end]}[which]


@given(story=st.lists(steps, min_size=2, max_size=14), wheres=st.lists(filters, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_sums_are_those_of_the_calls_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, object]], wheres: list[CallFilter]
) -> None:
    """Written in any order, changed by late events, repriced, undone, chosen and pruned: to the nano-dollar."""
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
                    with contextlib.suppress(StoreError):  # where there is nothing to undo
                        await store.undo_reprice()
                case "use", table:
                    with contextlib.suppress(StoreError):  # where that table was never used
                        await store.use_prices(table.version if isinstance(table, PriceTable) else None)
                case "prune", int(before):
                    await store.prune(before=before)
        await assert_in_step(store, [CallFilter(), *wheres])


async def test_a_call_that_ends_after_an_undo_has_the_cost_of_the_run_before_it(
    store: TraceStore, make: Maker
) -> None:
    """Two runs of one version, the second undone: it doesn't cover the call, and the sums know it."""
    await store.reprice(TABLES[0])
    await store.write([make.started("late", MODELS[0], ts_us=T0)])
    await store.reprice(TABLES[0])
    await store.undo_reprice()
    await store.write([make.completed("late", MODELS[0], ts_us=T0, usage=TokenUsage(7, 0))])
    (row,) = await store.costs(under=TABLES[0].version)
    assert row.cost_nano_usd == 7 * 1_000
    await assert_in_step(store, [CallFilter()])


async def fill(store: TraceStore, make: Maker, count: int) -> None:
    for number in range(count):
        model = MODELS[number % 2]
        at = T0 + number * DAY_US // 2
        request, cost = f"r{number}", Cost(10 + number, CostSource.COMPUTED, "0123456789ab")
        ids = {"session_id": "s", "ts_us": at}
        await store.write([make.started(request, model, **ids), make.completed(request, model, cost=cost, **ids)])


async def test_costs_by_day_and_model_are_read_from_the_sums(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole days are not added up again, but the calls of a day that the filter cuts are, and other groupings."""
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 1)
    await fill(store, make, 8)
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


async def test_new_calls_are_summed_up_once_there_are_enough(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of earlier, short-lived writers: the first write of a store counts what is waiting."""
    await fill(store, make, 3)
    assert sql(store.path, "SELECT up_to FROM summed_calls") == [(0,)]
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 4)
    async with TraceStore(store.path) as second:
        await second.write([make.started("one more")])
    assert sql(store.path, "SELECT up_to FROM summed_calls") == [(4,)]
    assert sql(store.path, "SELECT sum(calls), sum(cost_nano) FROM call_sums") == [(4, 33)]


async def test_sums_that_fail_lose_no_event(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no part of the transaction that stores events, and costs are right without them."""
    monkeypatch.setattr(sum_keeping, "SUM_UP_AFTER", 1)
    sql(store.path, "CREATE TRIGGER no BEFORE INSERT ON call_sums BEGIN SELECT RAISE(ABORT, 'no'); END")
    await fill(store, make, 3)
    (row,) = await store.costs(by=())
    assert (row.calls, row.cost_nano_usd) == (3, 33)
    sql(store.path, "DROP TRIGGER no")
    await store.write([make.started("one more")])
    assert sql(store.path, "SELECT up_to FROM summed_calls") == [(4,)]


async def test_a_file_of_an_earlier_version_gets_its_sums(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its calls, and of what they cost under the versions that it knows."""
    path = tmp_path / "old.db"
    async with TraceStore(tmp_path / "new.db") as new:
        await fill(new, make, 6)
        await new.reprice(TABLES[1])
    await make_file_before("call sums", path, monkeypatch)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("ATTACH ? AS new", (str(new.path),))
        copy_by_version(file)
    async with TraceStore(path) as store:
        assert sql(path, "SELECT up_to, (SELECT sum(calls) FROM call_sums) FROM summed_calls") == [(6, 6)]
        await assert_in_step(store, [CallFilter()])
        assert await store.costs(by=("model",)) == await cost_rows(tmp_path / "new.db")


async def cost_rows(path: Path) -> list[CostRow]:
    async with TraceStore(path) as store:
        return await store.costs(by=("model",))


async def test_a_backup_carries_the_sums(store: TraceStore, make: Maker, tmp_path: Path) -> None:
    """The copy answers as the file does, from its own sums."""
    await fill(store, make, 6)
    await store._database.write(sum_up)
    await store.reprice(TABLES[2])
    copy = tmp_path / "copy.db"
    await store.backup(copy)
    assert await cost_rows(copy) == await store.costs(by=("model",))
    assert sql(copy, "SELECT sum(calls) FROM call_sums") == [(6,)]

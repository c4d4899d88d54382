"""What can be asked of a trace: filters, sums, statistics, errors and free SQL."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pytest

from callboard.bus import StoreError
from callboard.tracestore import CallFilter, Percentiles, PriceRow, PriceTable, Store

from ..trace_making import DAY_US, T0, Maker, three_calls

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (CallFilter(turn_id="t2"), ["r2"]),
        (CallFilter(error_class="rate_limit"), ["r3"]),
        (CallFilter(error_class="nothing"), []),
        (CallFilter(unpriced=True), ["r2"]),
        (CallFilter(min_cost_nano_usd=5_000), ["r1"]),
        (CallFilter(min_cost_nano_usd=5_001), []),
        (CallFilter(session_id="s1", unpriced=True), ["r2"]),
    ],
)
async def test_more_filters_choose(store: Store, make: Maker, where: CallFilter, found: list[str]) -> None:
    """By turn, by class of error, by what has no cost, and by what cost much."""
    await three_calls(store, make)
    assert [row.request_id for row in await store.calls(where)] == found


async def test_filters_on_the_cost_mean_the_cost_that_is_shown(store: Store, make: Maker) -> None:
    """After a repricing the new cost counts, and with `under` that of the version asked for."""
    await three_calls(store, make)
    table = PriceTable.from_rows([PriceRow(model="other:*", input=1_000, output=1_000)])
    await store.reprice(table, where=CallFilter(provider="other"))
    assert await store.calls(CallFilter(unpriced=True)) == []
    assert [row.request_id for row in await store.calls(CallFilter(min_cost_nano_usd=1))] == ["r2", "r1"]
    everything = PriceTable.from_rows([PriceRow(model="openai:*", input=0, output=0, cache_read=0)])
    await store.reprice(everything)
    await store.use_prices(None)
    unpriced = await store.calls(CallFilter(unpriced=True), under=everything.version)
    assert [row.request_id for row in unpriced] == ["r2"]
    assert await store.calls(CallFilter(min_cost_nano_usd=1), under=everything.version) == []


async def test_costs_by_tag_and_by_what_a_call_does_not_have(store: Store, make: Maker) -> None:
    """A tag's key may be any text; calls without the tag are a group of their own."""
    await three_calls(store, make)
    assert {row.key: (row.calls, row.cost_nano_usd) for row in await store.costs(by=["tag:team"])} == {
        ("search",): (1, 5_000),
        ("ads",): (1, 0),
        ("",): (2, 0),
    }
    assert {row.key: row.calls for row in await store.costs(by=['tag:a"b$.c'])} == {("odd",): 1, ("",): 3}
    assert {row.key: row.unpriced for row in await store.costs(by=["session_id", "day"])} == {
        ("s1", "2026-09-21"): 0,
        ("s1", "2026-09-22"): 1,
        ("s2", "2026-09-23"): 0,
    }


async def test_costs_tell_the_cache_hit_rate(store: Store, make: Maker) -> None:
    """It is the part of all input tokens that came from the cache; without input there is none."""
    await three_calls(store, make)
    rates = {row.key: row.cache_hit_rate for row in await store.costs(by=["turn_id"])}
    assert rates == {("t1",): 0.75, ("t2",): 0.0, ("t3",): None}


@pytest.mark.parametrize("by", [["tag:"], ["raw"], ["model; DROP TABLE calls"]])
async def test_a_dimension_that_there_is_not_is_refused(store: Store, by: list[str]) -> None:
    """The error names those that there are."""
    for ask in (store.costs, store.statistics):
        with pytest.raises(ValueError, match="grouped by day, provider, model"):
            await ask(by=by)


async def test_a_moment_without_a_time_zone_is_refused(store: Store) -> None:
    """Wherever a moment may be given: it could be any hour."""
    naive = datetime(2026, 3, 1)
    with pytest.raises(ValueError, match="no time zone"):
        CallFilter(since=naive)
    with pytest.raises(ValueError, match="no time zone"):
        await store.events(until=naive)
    with pytest.raises(ValueError, match="no time zone"):
        await store.prune(before=naive)
    with pytest.raises(ValueError, match="no time zone"):
        await store.forget_content(naive)


async def test_errors_are_grouped_with_the_latest_of_each(store: Store, make: Maker) -> None:
    """Attempts that were retried are counted apart from those that ended the call."""
    await three_calls(store, make)
    later = make.failed("r4", ts_us=T0 + 9 * DAY_US)
    later = msgspec.structs.replace(later, data=msgspec.structs.replace(later.data, message="the latest"))
    earlier = make.failed("r5", ts_us=T0 - DAY_US)
    await store.write([later, earlier])
    server, rate_limit = await store.errors()
    assert (server.error_class, server.attempts, server.ended, server.calls) == ("server_error", 3, 2, 3)
    assert (server.first_us, server.last_us) == (T0 - DAY_US - 300_000, T0 + 9 * DAY_US - 300_000)
    assert (server.error_message, server.request_id, server.provider_status) == ("the latest", "r4", 503)
    assert (rate_limit.error_class, rate_limit.attempts, rate_limit.ended) == ("rate_limit", 1, 1)
    assert await store.errors(CallFilter(until=T0 - 2 * DAY_US)) == []


async def test_statistics_count_how_attempts_ended(store: Store, make: Maker) -> None:
    """What failed has no part in the latency; with nothing there are no rows."""
    assert await store.statistics(by=()) == []
    await three_calls(store, make)
    await store.write([make.started("r9")])
    (row,) = await store.statistics(by=())
    assert (row.attempts, row.completed, row.failed, row.running, row.retried) == (5, 2, 2, 1, 1)
    assert row.latency_ms == Percentiles(2, 900, 900, 900)
    assert row.cache_hit_rate == 75 / 200


async def test_sql_reads(store: Store, make: Maker) -> None:
    """Columns and rows of one statement, with parameters, up to the limit."""
    await three_calls(store, make)
    found = await store.sql(
        "SELECT request_id AS id, attempt FROM calls WHERE model = ? ORDER BY 1, 2", ["openai:gpt-5"]
    )
    assert (found.columns, found.rows, found.truncated) == (
        ("id", "attempt"),
        (("r1", 1), ("r3", 1), ("r3", 2)),
        False,
    )
    found = await store.sql("SELECT id FROM calls", limit=3)
    assert (len(found.rows), found.truncated) == (3, True)


async def test_sql_has_an_end(store: Store) -> None:
    """A statement that would never end is stopped, and the store works on."""
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(StoreError, match=r"longer than 0\.05 s"):
        await store.sql(endless, seconds=0.05)
    assert (await store.sql("SELECT 1")).rows == ((1,),)

"""Unknown is a number of its own: what every sum over stored calls says of calls that got no answer."""

from __future__ import annotations

import pytest

from callboard.bus.values.usage import Cost, CostSource, CostSum, TokenUsage, UsageSource
from callboard.tracestore import CallFilter, PriceRow, PriceTable, Store
from callboard.tracestore.sql.sums import sum_up

from ..trace_making import T0, Maker

pytestmark = pytest.mark.anyio

TABLE = PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second")
UNPRICED = Cost(None, CostSource.UNPRICED, "000000000000", "no price")
ESTIMATE = TokenUsage(7, 3, source=UsageSource.ESTIMATED)
COUNTS = {"calls": 10, "estimated": 1, "unpriced": 1, "unknown": 5}


async def a_faulty_day(store: Store, make: Maker) -> None:
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
async def test_every_sum_counts_what_it_doesnt_know(store: Store, make: Maker, summed: bool) -> None:
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


async def test_unknown_calls_can_be_asked_for(store: Store, make: Maker) -> None:
    """By a filter; and each row says it of itself."""
    await a_faulty_day(store, make)
    unknown = {"cancelled", "timed out", "broke off", "lost", "runs"}
    assert {row.request_id for row in await store.calls(CallFilter(unknown=True))} == unknown
    rows = await store.calls()
    assert {row.request_id for row in rows if row.unknown} == unknown
    assert sum((row.sum for row in rows), CostSum()) == CostSum(1239, **COUNTS)


async def test_a_repricing_says_what_it_could_not_know(store: Store, make: Maker) -> None:
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


async def test_an_absurd_clock_is_no_obstacle(store: Store, make: Maker) -> None:
    """Sums by day and reports are had all the same; such days have a sign and as many digits as they need."""
    far = 2**62
    for name, moment in (("far", far), ("back", -far), ("now", T0)):
        await store.write([make.completed(name, ts_us=moment)])
    days = {row.key[0]: row.calls for row in await store.costs(by=("day",))}
    assert days == {"+148108-07-06": 1, "-144169-06-28": 1, "2026-09-21": 1}
    report = await store.reprice(TABLE)
    assert {line.day for line in report.days} == set(days)

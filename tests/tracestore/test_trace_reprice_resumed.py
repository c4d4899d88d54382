"""Repricings that are interrupted, resumed, undone and repeated while the file changes under them.

Beside each run the test works out, call by call, what the run should report in the end: the cost before as the
file says, and the cost after as the price table does.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus import StoreError
from callboard.tracestore import CallFilter, CallRow, PriceTable, RepriceReport, RepriceSums, TraceStore
from callboard.tracestore.sql import repricing
from callboard.tracestore.sql.columns import iso_day

from .changing import CHUNK, TABLES, Interrupted, calls, do, moments, stop
from .test_trace_call_sums import assert_in_step
from .trace_making import T0, Maker

pytestmark = pytest.mark.anyio


class Expected:
    """The sums of a run, worked out call by call from what the file says just before the run finishes."""

    def __init__(self, table: PriceTable, rows: list[CallRow], days: dict[int, int]) -> None:
        self._table = table
        self._sums: dict[str, list[int]] = defaultdict(lambda: [0] * len(FIELDS))
        for row in rows:
            if row.usage is not None:
                before, after = None if row.cost is None else row.cost.nano_usd, self.price(row)
                for name in ("", f"model {row.model}", f"day {iso_day(days[row.call_id])}"):
                    for place, more in enumerate(parts_of(before, after)):
                        self._sums[name][place] += more

    def price(self, row: CallRow) -> int | None:
        """What replaying the call past the price table gives."""
        assert row.usage is not None
        return self._table.price(row.model, row.usage, T0, served_model=row.served_model).nano_usd

    def check(self, report: RepriceReport) -> None:
        told = {"": numbers(report.total)}
        told |= {f"model {of.model}": numbers(of) for of in report.models}
        told |= {f"day {of.day}": numbers(of) for of in report.days}
        assert told == {"": [0] * len(FIELDS), **self._sums}
        if report.sessions:
            assert [sum(column) for column in zip(*map(numbers, report.sessions), strict=True)] == told[""]


FIELDS = (
    *("calls", "unpriced", "unpriced_before", "before_nano_usd", "after_nano_usd"),
    *("newly_priced", "newly_priced_nano_usd", "no_longer_priced", "no_longer_priced_nano_usd"),
)


def numbers(of: RepriceSums) -> list[int]:
    return [getattr(of, name) for name in FIELDS]


def parts_of(before: int | None, after: int | None) -> tuple[int, ...]:
    """What one call adds to each of the fields."""
    if before is not None and after is not None:
        return (1, 0, 0, before, after, 0, 0, 0, 0)
    newly = (int(after is not None), after or 0)
    no_longer = (int(before is not None), before or 0)
    return (1, int(after is None), int(before is None), 0, 0, *newly, *no_longer)


async def reprice_in_steps(
    store: TraceStore, make: Maker, table: PriceTable, changes: list[object], which: str | None
) -> None:
    """Reprice, with one of `changes` after each chunk; check the report and every cost against the expectation."""
    where = CallFilter(model="openai:*") if which == "filter" else CallFilter()
    current, report, begun = await store.current_prices(), None, False
    while report is None:
        days = dict(await store._database.read("SELECT id, day FROM calls"))
        expected = Expected(table, await store.calls(where), days)
        with contextlib.suppress(Interrupted):
            if begun:
                report = await store.resume_reprice(progress=stop)
            else:
                report = await store.reprice(table, where=where, by_session=which == "sessions", progress=stop)
        begun = True
        if report is None:
            assert await store.current_prices() == current, "nothing has changed for anybody"
            if changes:
                await do(store, make, changes.pop(0))
    expected.check(report)
    for row in await store.calls(where):
        if row.usage is not None:
            assert row.cost is not None
            assert (row.cost.pricing_version, row.cost.nano_usd) == (table.version, expected.price(row))


changes = st.one_of(st.lists(calls, min_size=1, max_size=4), st.tuples(st.just("prune"), moments))
steps = st.one_of(
    st.tuples(
        st.sampled_from(TABLES),
        st.lists(changes, max_size=4),
        st.sampled_from([None, None, None, "filter", "sessions"]),
    ),
    st.sampled_from(["undo", "call time"]),
)


@given(
    written=st.lists(calls, min_size=4, max_size=16),
    story=st.lists(steps, min_size=2, max_size=5),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_an_interrupted_repricing_reports_and_stores_what_replaying_the_calls_does(
    tmp_path_factory: pytest.TempPathFactory, written: list[object], story: list[object]
) -> None:
    """Whatever is repriced over what, undone, written and pruned meanwhile: to the nano-dollar, chunk by chunk."""
    make = Maker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repricing, "CHUNK", CHUNK)
        async with TraceStore(tmp_path_factory.mktemp("resumed") / "t.db") as store:
            await do(store, make, written)
            for step in story:
                match step:
                    case "undo":
                        with contextlib.suppress(StoreError):  # where there is nothing to undo
                            await store.undo_reprice()
                    case "call time":
                        await store.use_prices(None)
                    case (PriceTable() as table, list(changes), which):
                        await reprice_in_steps(store, make, table, [*changes], which)
            await assert_in_step(store, [CallFilter()])

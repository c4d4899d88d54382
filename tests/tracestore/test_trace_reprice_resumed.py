"""Repricings that are interrupted, resumed, undone and repeated while the file changes under them.

A run's chunks are taken one at a time: after each the run is interrupted, the file is written to, and the run is
resumed. Beside it the test works out, call by call, what the chunk should find: the cost before as the file says,
and the cost after as the price table does.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.errors import StoreError
from bus.events import Envelope
from bus.usage import Cost, CostSource, TokenUsage
from tracestore import (
    CallFilter,
    CallRow,
    DayReprice,
    ModelReprice,
    PriceRow,
    PriceTable,
    RepriceReport,
    SessionReprice,
    TraceStore,
    migrations,
    repricing,
)
from tracestore.dimensions import iso_day

from .test_trace_call_sums import assert_in_step
from .trace_making import DAY_US, T0, Maker

pytestmark = pytest.mark.anyio

MODELS = ("openai:gpt-5", "openai:gpt-5-mini", "other:thing")
TABLES = [
    PriceTable([PriceRow(model=f"{provider}:*", input=rate * 1_001_500, output=rate * 2_000_000)], f"table {rate}")
    for rate, provider in ((1, "openai"), (2, "openai"), (3, "*"))
]
CHUNK = 3


class Interrupted(Exception):
    """What a progress callback raises after a chunk."""


def stop(_done: int, _last: int) -> None:
    raise Interrupted


class Expected:
    """The sums of a run, worked out call by call: calls, unpriced, before, after and unpriced before."""

    def __init__(self, table: PriceTable) -> None:
        self._table = table
        self._models: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
        self._days: dict[str, list[int]] = defaultdict(lambda: [0] * 5)

    def price(self, row: CallRow) -> int | None:
        """What replaying the call past the price table gives."""
        assert row.usage is not None
        return self._table.price(row.model, row.usage, T0, served_model=row.served_model).nano_usd

    def add(self, row: CallRow, day: int) -> None:
        before, after = None if row.cost is None else row.cost.nano_usd, self.price(row)
        more = (1, after is None, before or 0, after or 0, before is None)
        for sums in (self._models[row.model], self._days[iso_day(day)]):
            for place, value in enumerate(more):
                sums[place] += value

    def check(self, report: RepriceReport) -> None:
        def numbers(of: RepriceReport | ModelReprice | DayReprice | SessionReprice) -> list[int]:
            if isinstance(of, RepriceReport):
                sums = (of.sum_before_nano_usd, of.sum_after_nano_usd)
            else:
                sums = (of.before_nano_usd, of.after_nano_usd)
            return [of.calls, of.unpriced, *sums, of.unpriced_before]

        assert {of.model: numbers(of) for of in report.models} == self._models
        assert {of.day: numbers(of) for of in report.days} == self._days
        total = [sum(column) for column in zip(*self._models.values(), strict=True)] or [0] * 5
        assert numbers(report) == total
        if report.sessions:
            assert [sum(column) for column in zip(*map(numbers, report.sessions), strict=True)] == total


async def reprice_in_steps(
    store: TraceStore, make: Maker, table: PriceTable, changes: list[object], which: str | None
) -> None:
    """Reprice, with one of `changes` after each chunk; check the report and every cost against the expectation."""
    where = CallFilter(model="openai:*") if which == "filter" else CallFilter()
    ((last,),) = await store._database.read("SELECT coalesce(max(id), 0) FROM calls")
    current, expected, report, done = await store.current_version(), Expected(table), None, 0
    while report is None:
        days = dict(await store._database.read("SELECT id, day FROM calls"))
        for row in await store.calls(where):
            if done < row.call_id <= min(done + CHUNK, last) and row.usage is not None:
                expected.add(row, days[row.call_id])
        with contextlib.suppress(Interrupted):
            if done == 0:
                report = await store.reprice(table, where=where, by_session=which == "sessions", progress=stop)
            else:
                report = await store.resume_reprice(progress=stop)
        done += CHUNK
        if report is None:
            assert await store.current_version() == current, "nothing has changed for anybody"
            if changes:
                await do(store, make, changes.pop(0))
    expected.check(report)
    for row in await store.calls():
        if row.usage is not None and row.cost is not None and row.cost.pricing_version == table.version:
            assert row.cost.nano_usd == expected.price(row)


async def do(store: TraceStore, make: Maker, change: object) -> None:
    match change:
        case "prune", int(before):
            await store.prune(before=before)
        case list(calls):
            await store.write([envelope for call in calls for envelope in events(make, call)])


def events(make: Maker, call: tuple[int, str, int, TokenUsage, Cost | None]) -> list[Envelope]:
    number, which, moment, usage, cost = call
    request, model = f"req_{number}", MODELS[number % len(MODELS)]
    ids = {"session_id": f"s{number % 2}"}
    start = make.started(request, model, ts_us=moment, **ids)
    end = make.completed(request, model, ts_us=moment, usage=usage, cost=cost, **ids)
    return {"start": [start], "end": [end], "both": [start, end]}[which]


moments = st.integers(0, 8).map(lambda quarter: T0 + quarter * DAY_US // 4)
costs = st.none() | st.integers(0, 10**9).map(lambda nano: Cost(nano, CostSource.COMPUTED, "0123456789ab"))
calls = st.tuples(
    st.integers(0, 25),
    st.sampled_from(["start", "end", "both", "both", "both"]),
    moments,
    st.builds(TokenUsage, st.integers(0, 999), st.integers(0, 99)),
    costs,
)
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
def test_an_interrupted_repricing_reports_and_stores_what_replaying_the_calls_does(
    tmp_path_factory: pytest.TempPathFactory, written: list[object], story: list[object]
) -> None:
    """Whatever is repriced over what, undone, written and pruned meanwhile: to the nano-dollar, chunk by chunk."""

    async def check() -> None:
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

    anyio.run(check)


async def test_a_call_that_goes_before_its_turn_is_in_no_sum(
    store: TraceStore, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruned while a repricing over another was interrupted: what it cost before is not told, nor its model."""
    monkeypatch.setattr(repricing, "CHUNK", CHUNK)
    usage, cost = TokenUsage(100, 10), Cost(77, CostSource.COMPUTED, "0123456789ab")
    await do(store, make, [(number, "both", T0, usage, cost) for number in (0, 3, 6)])
    await do(store, make, [(number, "both", T0 - DAY_US, usage, cost) for number in (12, 15, 1)])
    await do(store, make, [(9, "both", T0, usage, cost)])
    await store.reprice(TABLES[0])
    with pytest.raises(Interrupted):
        await store.reprice(TABLES[1], progress=stop)
    assert (await store.prune(before=T0)).attempts == 3
    report = await store.resume_reprice()
    assert [(of.model, of.calls) for of in report.models] == [(MODELS[0], 4)]
    assert len(report.days) == 1
    assert (report.sum_before_nano_usd, report.unpriced_before) == (4 * 120_150, 0)


async def test_a_repricing_in_a_file_of_an_earlier_version_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was begun without a base goes on looking up what each call costs now."""
    monkeypatch.setattr(repricing, "CHUNK", CHUNK)
    usage, cost = TokenUsage(100, 10), Cost(77, CostSource.COMPUTED, "0123456789ab")
    reports = []
    for name in ("whole", "earlier"):
        path, make = tmp_path / f"{name}.db", Maker()
        async with TraceStore(path) as store:
            await do(store, make, [(number, "both", T0, usage, cost) for number in range(8)])
            await store.reprice(TABLES[0])
            if name == "whole":
                reports.append(await store.reprice(TABLES[1]))
                continue
            with monkeypatch.context() as patch, pytest.raises(Interrupted):
                patch.setattr(repricing, "start_from_base", lambda *_: None)
                await store.reprice(TABLES[1], progress=stop)
        as_before_the_base(path)
        async with TraceStore(path) as store:
            reports.append(await store.resume_reprice())
    assert reports[0] == reports[1]


def as_before_the_base(path: Path) -> None:
    """Take back the migration of repricings with a base, in a file that has none, and those after it."""
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        for kind, name in file.execute(
            "SELECT type, name FROM sqlite_master WHERE name LIKE '%_to_reprice_%'"
        ).fetchall():
            file.execute(f"DROP {kind} {name}")
        file.execute("DROP INDEX reprice_run_by_base")
        for column in ("base", "estimated", "unknown"):
            file.execute(f"ALTER TABLE reprice_run DROP COLUMN {column}")
        for sql in (
            *("DROP INDEX calls_without_usage", "DROP INDEX calls_estimated"),
            *("DROP TRIGGER summed_call_changes", "DROP TRIGGER summed_call_goes"),
            *("ALTER TABLE call_sums DROP COLUMN unknown", "ALTER TABLE calls DROP COLUMN resent"),
        ):
            file.execute(sql)
        version = [name for name, _ in migrations.MIGRATIONS].index("repricing base")
        file.execute("DELETE FROM schema_history WHERE version > ?", (version,))
        file.execute(f"PRAGMA user_version = {version}")

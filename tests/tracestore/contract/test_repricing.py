"""Repricing: SQL and the price table agree to the nano-dollar, and no stored cost is edited."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus import Cost, CostSource, StoreError, TokenUsage, UsageSource
from callboard.tracestore import CallFilter, PostgresStore, PriceAlias, PriceRow, PriceTable, Store, TraceStore
from callboard.tracestore.sql import repricing

from ...support.present import present
from ..trace_making import DAY_US, T0, Maker
from .conftest import Place

FIRST = PriceTable.from_rows([PriceRow(model="openai:*", input=1_000_000, output=2_000_000)], "first")
SECOND = PriceTable.from_rows([PriceRow(model="openai:*", input=3_000_000, output=5_000_000)], "second")
USAGE = TokenUsage(input_tokens=100, output_tokens=10)


async def fill(store: Store, make: Maker, calls: int = 4) -> None:
    """Write calls of two models with the prices of FIRST. One model has no price."""
    batch = []
    for number in range(calls):
        model = "openai:gpt-5" if number % 2 else "other:thing"
        cost = FIRST.price(model, USAGE, T0)
        ids = {"session_id": f"s{number}"}
        batch += [make.started(f"r{number}", model, **ids), make.completed(f"r{number}", model, cost=cost, **ids)]
    await store.write([*batch, make.started("running")])


def costs_of(rows: list[object]) -> list[Cost | None]:
    return [row.cost for row in rows]  # type: ignore[attr-defined]


async def test_repricing_adds_and_never_edits(store: Store, make: Maker) -> None:
    """The new cost is next to the cost at call time. A dry run has the same report and writes nothing."""
    await fill(store, make)
    events, before = await store.events(), await store.calls()
    dry = await store.reprice(SECOND, dry_run=True)
    assert (await store.calls(), await store.price_tables(), await store.reprice_runs()) == (before, [], [])
    report = await store.reprice(SECOND)
    assert (dry.dry_run, report.dry_run) == (True, False)
    assert (dry.calls, dry.sum_after_nano_usd, dry.models) == (4, report.sum_after_nano_usd, report.models)
    assert (report.calls, report.unpriced, report.unpriced_before) == (4, 2, 2)
    assert (report.sum_before_nano_usd, report.sum_after_nano_usd) == (2 * 120_000, 2 * 350_000)
    told = [(m.model, m.calls, m.after_nano_usd) for m in report.models]
    assert told == [("openai:gpt-5", 2, 700_000), ("other:thing", 2, 0)]
    assert await store.events() == events
    (row,) = await store.calls(CallFilter(request_id="r1"))
    assert row.at_call_time == Cost(120_000, CostSource.COMPUTED, FIRST.version)
    assert row.cost == Cost(350_000, CostSource.COMPUTED, SECOND.version)
    (row,) = await store.calls(CallFilter(request_id="r0"))
    assert row.cost == Cost(None, CostSource.UNPRICED, SECOND.version, "no price for other:thing")
    assert await store.current_version() == SECOND.version


async def test_there_and_back_restores_every_cost(store: Store, make: Maker) -> None:
    """Costs go from v1 to v2 and back, then to those at call time. The same version again changes nothing."""
    await fill(store, make)
    at_call_time = await store.calls()
    for _ in range(2):
        report = await store.reprice(FIRST)
        assert report.sum_before_nano_usd == report.sum_after_nano_usd
        assert all(model.before_nano_usd == model.after_nano_usd for model in report.models)
    first = await store.calls()
    report = await store.reprice(SECOND)
    assert await store.calls() != first
    await store.use_prices(report.previous_version)
    assert await store.calls() == first
    await store.use_prices(None)
    assert await store.calls() == at_call_time
    assert costs_of(await store.calls(under=FIRST.version)) == costs_of(first)


async def test_what_would_it_have_cost_on_another_model(store: Store, make: Maker) -> None:
    """as_model prices every call as another model, and stores nothing."""
    await fill(store, make)
    table = PriceTable.from_rows([PriceRow(model="big:one", input=10, output=20)])
    report = await store.reprice(table, as_model="big:one")
    assert report.dry_run
    assert report.as_model == "big:one"
    assert (report.calls, report.unpriced) == (4, 0)
    assert report.total.all_after_nano_usd == 4 * 1  # 100*10 + 10*20 = 1200 pico
    assert await store.current_version() is None
    unknown = await store.reprice(table, as_model="big:two")
    assert unknown.unpriced == 4


async def test_a_version_can_be_named(store: Store, make: Maker) -> None:
    await fill(store, make)
    await store.reprice(SECOND)
    await store.use_prices(None)
    report = await store.reprice(SECOND.version)
    assert (report.version, report.label) == (SECOND.version, "second")
    (table,) = await store.price_tables()
    assert table.rows == SECOND.rows
    for attempt in (store.reprice("nope"), store.use_prices("nope")):
        with pytest.raises(StoreError, match=f"nope.*{SECOND.version}"):
            await attempt


async def test_writing_goes_on_between_chunks(store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repricing locks the trace for one chunk at a time. Two repricings take turns."""
    monkeypatch.setattr(repricing, "CHUNK", 1)
    await fill(store, make, 8)
    async with anyio.create_task_group() as group:
        group.start_soon(store.reprice, FIRST)
        group.start_soon(store.reprice, SECOND)
        for number in range(8):
            await store.write([make.started(f"new{number}")])
    assert await store.current_version() == SECOND.version
    assert len(await store.price_tables()) == 2


counts = st.one_of(st.integers(0, 300_000), st.integers(50_000, 300_000), st.integers(0, 2**62))
ALL_MODELS = ["a:x", "a:x-2025-08-06", "a:y", "b:x", "b:x-20250101"]
DETAILS = st.sampled_from(
    ["audio_input", "audio_output", "audio_cache_read", "image_cache_read", "web_search", "audio_second"]
)
EXTRA_RATES = ["audio_input", "image_input", "image_output", "audio_cache_read", "web_search"]
PATTERNS = ["a:x", "a:*", "*:x", "a:x-*", "b:x", "*:*"]


@st.composite
def tables(draw: st.DrawFn) -> PriceTable:
    """Price tables with gaps in time, tiers, missing rates and overlapping patterns."""
    rate = st.one_of(st.integers(1, 999), st.integers(1_000, 20_000_000), st.none())
    rows = []
    patterns = st.tuples(st.sampled_from(PATTERNS), st.sampled_from(["", "", "batch", "*"]))
    for pattern, tier in draw(st.lists(patterns, min_size=1, max_size=4, unique=True)):
        cuts = sorted(draw(st.sets(st.integers(0, 20), max_size=3)))
        spans = list(zip([None, *cuts], [*cuts, None], strict=True))
        hours = draw(st.sampled_from([(None, None), (None, None), (0, 48_002), (48_003, 86_400)]))
        reference, names = draw(st.booleans()), st.sampled_from(EXTRA_RATES)
        extra = draw(st.dictionaries(names, st.integers(0, 10**9), max_size=2))
        for above in draw(st.sets(st.sampled_from([0, 100, 100_000]), min_size=1)):
            for low, high in spans:
                if draw(st.integers(0, 3)):
                    names = ("input", "output", "reasoning", "cache_read", "cache_write_5m", "cache_write_1h")
                    rows.append(
                        PriceRow(
                            model=pattern,
                            valid_from=None if low is None else T0 + low * 1_000_000,
                            valid_to=None if high is None else T0 + high * 1_000_000,
                            above=above,
                            per_request=draw(st.integers(0, 2000)),
                            service_tier=tier,
                            daily_from=hours[0],
                            daily_to=hours[1],
                            reference=reference,
                            extra=extra,
                            **{name: draw(rate) for name in names},
                        )
                    )
    aliases = [PriceAlias("b:*", "a:*"), PriceAlias("a:y", "b:x"), PriceAlias("*:q*", "a:x", reference=True)]
    return PriceTable(rows, aliases=draw(st.lists(st.sampled_from(aliases), unique=True)))


@st.composite
def any_usage(draw: st.DrawFn) -> TokenUsage:
    """Usage whose counts may contradict each other."""
    return TokenUsage(
        *(draw(counts) for _ in range(4)),
        draw(st.integers(0, 1000)),
        draw(st.none() | st.integers(0, 1000)),
        details=draw(st.none() | st.dictionaries(DETAILS, st.integers(-1, 500) | counts, max_size=3)),
        service_tier=draw(st.sampled_from([None, "batch", "flex", "Default"])),
        source=draw(st.sampled_from([*[UsageSource.REPORTED] * 4, UsageSource.INCONSISTENT])),
    )


def another(place: Place, folder: Path) -> Store:
    """A store on another empty trace of the same kind."""
    if place.dsn is None:
        return TraceStore(folder / "t.db")
    return PostgresStore(place.dsn, path=folder / "trace", schema=f"s{next(_schemas)}")


_schemas = count()


@given(
    table=tables(),
    calls=st.lists(
        st.tuples(
            st.sampled_from(ALL_MODELS),
            st.none() | st.sampled_from(["x", "y", "x-20250101", "q"]),
            st.none() | st.sampled_from(["a:x", "b:y", "c:x"]),
            any_usage(),
            st.sampled_from(["completed", "completed", "failed", "without a start"]),
        ),
        min_size=1,
        max_size=12,
    ),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_sql_and_table_agree_to_the_nano_dollar(
    place: Place,
    tmp_path_factory: pytest.TempPathFactory,
    table: PriceTable,
    calls: list[tuple[str, str | None, str | None, TokenUsage, str]],
) -> None:
    """For every table and call, cost and reason are the same, and the report has their sums. A call that failed
    may have used tokens. A call without a start is priced for the time before its latency.
    """
    make = Maker()
    async with another(place, tmp_path_factory.mktemp("agree")) as store:
        expected = {}
        for number, (model, served, priced_as, usage, how) in enumerate(calls):
            start = make.started(f"r{number}", model, priced_as=priced_as)
            end = make.completed(f"r{number}", model, usage=usage, served_model=served)
            names, at_us = {"served_model": served or model.partition(":")[2], "priced_as": priced_as}, start.ts_us
            if how == "failed":
                end, names = make.failed(f"r{number}", model, usage=usage), {"priced_as": priced_as}
            elif how == "without a start":
                names, at_us = {"served_model": names["served_model"]}, end.ts_us - 900_000
            await store.write([end] if how == "without a start" else [start, end])
            expected[f"r{number}"] = table.price(model, usage, at_us, **names)
        report = await store.reprice(table)
        assert {row.request_id: row.cost for row in await store.calls()} == expected
        assert (await store.price_tables())[0] == table
        assert (await store.price_tables())[0].rows == table.rows
        nano = [cost.nano_usd for cost in expected.values()]
        assert report.total.all_after_nano_usd == sum(cost for cost in nano if cost is not None)
        assert report.unpriced == nano.count(None)


async def test_sql_and_table_agree_at_the_edges(store: Store, make: Maker) -> None:
    """Random calls rarely reach half a nano-dollar, the threshold of a tier and the end of 64 bits."""
    cases: list[tuple[TokenUsage, int | None]] = [
        (TokenUsage(input_tokens=4), 0),  # 400 pico-USD
        (TokenUsage(input_tokens=5), 1),  # 500
        (TokenUsage(input_tokens=99_990, cached_input_tokens=10), 9_999),
        (TokenUsage(input_tokens=99_991, cached_input_tokens=10), 19_998),
        (TokenUsage(input_tokens=2**62, cache_creation_input_tokens=2**62), None),
    ]
    rate = {"model": "openai:*", "cache_read": 0}
    table = PriceTable([PriceRow(input=100, **rate), PriceRow(input=200, above=100_000, **rate)])  # type: ignore[arg-type]
    for number, (usage, _) in enumerate(cases):
        await store.write([make.started(f"r{number}"), make.completed(f"r{number}", usage=usage)])
    await store.reprice(table)
    for row, (usage, nano) in zip(reversed(await store.calls()), cases, strict=True):
        assert row.cost == table.price("openai:gpt-5", usage, T0)
        assert present(row.cost).nano_usd == nano


# Single repricings: undone one at a time, limited by a filter, and reported in parts that add up.


async def test_undo_goes_back_one_repricing_at_a_time(store: Store, make: Maker) -> None:
    """Each undo removes the last repricing, of all or of some calls, back to the costs at call time."""
    await fill(store, make)
    seen = [await store.calls()]
    third = PriceTable.from_rows([PriceRow(model="*:*", input=7_000, output=7_000)])
    for table, where in ((FIRST, None), (SECOND, CallFilter(session_id="s1")), (third, None)):
        await store.reprice(table, where=where)
        seen.append(await store.calls())
    (_, run, _) = await store.reprice_runs()
    assert (run.where, run.calls, run.sum_after_nano_usd) == (CallFilter(session_id="s1"), 1, 350_000)
    while len(seen) > 1:
        assert await store.calls() == seen.pop()
        await store.undo_reprice()
    assert await store.calls() == seen.pop()
    assert {run.state for run in await store.reprice_runs()} == {"undone"}
    with pytest.raises(StoreError, match="no repricing to undo"):
        await store.undo_reprice()


async def test_undo_is_refused_after_other_costs_were_chosen(store: Store, make: Maker) -> None:
    """An undo would not restore the previous costs."""
    await fill(store, make)
    await store.reprice(FIRST)
    await store.reprice(SECOND)
    await store.use_prices(None)
    with pytest.raises(StoreError, match="chosen after repricing 2"):
        await store.undo_reprice()


async def test_the_report_adds_up_by_model_day_and_session(store: Store, make: Maker) -> None:
    """The three comparisons have the same sums, for dry and real runs."""
    await fill(store, make, 6)
    for dry in (True, False):
        report = await store.reprice(SECOND, dry_run=dry, by_session=True)
        for rows in (report.models, report.days, report.sessions):
            assert sum(row.calls for row in rows) == report.calls == 6
            assert sum(row.unpriced for row in rows) == report.unpriced == 3
            assert sum(row.before_nano_usd for row in rows) == report.sum_before_nano_usd
            assert sum(row.after_nano_usd for row in rows) == report.sum_after_nano_usd
        assert [row.session_id for row in report.sessions[:3]] == ["s1", "s3", "s5"]


async def test_a_call_that_is_pruned_is_in_no_sum(
    store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repricing, "CHUNK", 3)
    old, new, mini = T0 - DAY_US, "openai:gpt-5", "openai:gpt-5-mini"
    for number, (model, at_us) in enumerate(
        [(new, T0), (new, T0), (new, T0), (new, old), (new, old), (mini, old), (new, T0)]
    ):
        about = {"ts_us": at_us, "session_id": f"s{number % 2}"}
        end = make.completed(f"r{number}", model, usage=USAGE, **about)
        await store.write([make.started(f"r{number}", model, **about), end])

    def stop(_done: int, _last: int) -> None:
        raise InterruptedError

    await store.reprice(FIRST)
    with pytest.raises(InterruptedError):
        await store.reprice(SECOND, progress=stop)
    assert (await store.prune(before=T0)).attempts == 3
    report = await store.resume_reprice()
    assert [(of.model, of.calls) for of in report.models] == [(new, 4)]
    assert len(report.days) == 1
    assert (report.sum_before_nano_usd, report.unpriced_before) == (4 * 120_000, 0)

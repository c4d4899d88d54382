"""The queries of a store: filters, groups, sums, spending and exports."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, cast

import msgspec
import pytest

from callboard.bus import ConfigurationError, Envelope, LlmCallStarted, StoreError
from callboard.bus.clock import iso_moment
from callboard.bus.values.usage import Cost, CostSource, CostSum, TokenUsage, UsageSource
from callboard.tracestore import CallFilter, Percentiles, PriceRow, PriceTable, Store
from callboard.tracestore.export import COLUMNS, FORMATS, Format, export_calls
from callboard.tracestore.rows import SpendingQuery, SpendingRow
from callboard.tracestore.sql.sums import sum_up

from ..trace_making import DAY_US, T0, Maker, fill, three_calls

# Queries of a trace: filters, sums, statistics, errors and SQL.


async def test_calls_are_filtered_by_turn_error_and_cost(store: Store, make: Maker) -> None:
    await three_calls(store, make)
    for where, found in [
        (CallFilter(turn_id="t2"), ["r2"]),
        (CallFilter(error_class="rate_limit"), ["r3"]),
        (CallFilter(error_class="nothing"), []),
        (CallFilter(unpriced=True), ["r2"]),
        (CallFilter(min_cost_nano_usd=5_000), ["r1"]),
        (CallFilter(min_cost_nano_usd=5_001), []),
        (CallFilter(session_id="s1", unpriced=True), ["r2"]),
    ]:
        assert [row.request_id for row in await store.calls(where)] == found, where


async def test_filters_on_the_cost_use_the_displayed_cost(store: Store, make: Maker) -> None:
    """After a repricing, the new cost is filtered. With `under`, the cost of that price version is filtered."""
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


async def test_costs_are_grouped_by_tag_session_and_turn(store: Store, make: Maker) -> None:
    """A tag's key can be any text. Calls without the tag form their own group."""
    await three_calls(store, make)
    by_team = {row.key: (row.calls, row.cost_nano_usd) for row in await store.costs(by=["tag:team"])}
    assert by_team == {("search",): (1, 5_000), ("ads",): (1, 0), ("",): (2, 0)}
    assert {row.key: row.calls for row in await store.costs(by=['tag:a"b$.c'])} == {("odd",): 1, ("",): 3}
    by_day = {row.key: row.unpriced for row in await store.costs(by=["session_id", "day"])}
    assert by_day == {("s1", "2026-09-21"): 0, ("s1", "2026-09-22"): 1, ("s2", "2026-09-23"): 0}
    rates = {row.key: row.cache_hit_rate for row in await store.costs(by=["turn_id"])}
    assert rates == {("t1",): 0.75, ("t2",): 0.0, ("t3",): None}


async def test_an_unknown_dimension_is_refused(store: Store) -> None:
    for by in (["tag:"], ["raw"], ["model; DROP TABLE calls"]):
        for ask in (store.costs, store.statistics):
            with pytest.raises(ValueError, match="grouped by day, provider, model"):
                await ask(by=by)


async def test_a_moment_without_a_time_zone_is_refused(store: Store) -> None:
    naive = datetime(2026, 3, 1)
    with pytest.raises(ValueError, match="no time zone"):
        CallFilter(since=naive)
    for asked in (store.events(until=naive), store.prune(before=naive), store.forget_content(naive)):
        with pytest.raises(ValueError, match="no time zone"):
            await asked


async def test_errors_are_grouped_with_the_latest_of_each(store: Store, make: Maker) -> None:
    """Attempts that were retried and attempts that ended the call are counted separately."""
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
    """Failed attempts are not included in the latency. Without attempts there are no rows."""
    assert await store.statistics(by=()) == []
    await three_calls(store, make)
    await store.write([make.started("r9")])
    (row,) = await store.statistics(by=())
    assert (row.attempts, row.completed, row.failed, row.running, row.retried) == (5, 2, 2, 1, 1)
    assert row.latency_ms == Percentiles(2, 900, 900, 900)
    assert row.cache_hit_rate == 75 / 200


async def test_sql_returns_columns_and_rows(store: Store, make: Maker) -> None:
    await three_calls(store, make)
    of_gpt = "SELECT request_id AS id, attempt FROM calls WHERE model = ? ORDER BY 1, 2"
    found = await store.sql(of_gpt, ["openai:gpt-5"])
    rows = (("r1", 1), ("r3", 1), ("r3", 2))
    assert (found.columns, found.rows, found.truncated) == (("id", "attempt"), rows, False)
    found = await store.sql("SELECT id FROM calls", limit=3)
    assert (len(found.rows), found.truncated) == (3, True)


async def test_sql_has_a_time_limit(store: Store) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(StoreError, match=r"longer than 0\.05 s"):
        await store.sql(endless, seconds=0.05)
    assert (await store.sql("SELECT 1")).rows == ((1,),)


# The sums that budgets count.

OTHER_RUN = "run_other"
HOUR_US = 3_600_000_000


def reserved(envelope: Envelope, nano_usd: int | None, tokens: int) -> Envelope:
    """The start of an attempt for which budgets have reserved an amount."""
    event = envelope.data
    assert isinstance(event, LlmCallStarted)
    event = msgspec.structs.replace(event, reserved_nano_usd=nano_usd, reserved_tokens=tokens)
    return msgspec.structs.replace(envelope, data=event)


def row(nano_usd: int, tokens: int, calls: int = 1, **more: object) -> SpendingRow:
    facts = {"value": "", "slot": 0, "unknown": False, **more}
    return SpendingRow(nano_usd=nano_usd, tokens=tokens, calls=calls, **facts)  # type: ignore[arg-type]


async def rows(store: Store, **asked: object) -> list[SpendingRow]:
    query = SpendingQuery(**asked)  # type: ignore[arg-type]
    return (await store.spending([query], OTHER_RUN)).rows[0]


def cut(output: int) -> dict[str, object]:
    """The end of a call that was cancelled after some output."""
    usage = TokenUsage(7, output, source=UsageSource.ESTIMATED)
    return {"error_class": "cancelled", "usage": usage, "cost": Cost(7 + output, CostSource.COMPUTED)}


async def test_an_attempt_counts_with_its_cost_or_its_reservation(store: Store, make: Maker) -> None:
    at_its_most = {"nano_usd": 900, "tokens": 70, "unknown": True}
    ends: dict[str, tuple[dict[str, object] | None, dict[str, object]]] = {
        "completed: its cost": ({}, {"nano_usd": 1234, "tokens": 110}),
        "refused": ({"error_class": "server_error", "provider_status": 503}, {"nano_usd": 0, "tokens": 0}),
        "no answer": ({"error_class": "network", "provider_status": None}, at_its_most),
        "lost": ({"error_class": "process_lost", "provider_status": None}, at_its_most),
        "cancelled before anything was received": (cut(0), at_its_most),
        "cancelled in the middle: the delivered part": (cut(3), {"nano_usd": 10, "tokens": 10}),
        "in progress elsewhere": (None, at_its_most),
    }
    for name, (end, _) in ends.items():
        batch = [reserved(make.started(name, session_id=name), 900, 70)]
        if end is not None:
            of = {"session_id": name, **end}
            batch.append(make.failed(name, **of) if end else make.completed(name, **of))
        await store.write(batch)
    found = {each.value: each for each in await rows(store, by="session_id")}
    assert found == {name: row(value=name, **counts) for name, (_, counts) in ends.items()}


async def test_a_run_s_own_calls_in_progress_are_left_out_of_its_sums(store: Store, make: Maker) -> None:
    """The run holds these reservations itself. The result has the last event that the sums include."""
    await store.write([make.started("one"), make.completed("one"), reserved(make.started("two"), 900, 70)])
    found = await store.spending([SpendingQuery()], make.run_id)
    assert (found.rows, found.committed_seq) == ([[row(1234, 110)]], 3)


async def test_sums_are_by_account(store: Store, make: Maker) -> None:
    """Calls without a session or a tag share one account. A query can select one account."""
    of = {"session_id": "s", "tags": {"tenant": "acme"}}
    await store.write(
        [make.started("a", **of), make.completed("a", **of), make.completed("b", "other:thing")]  # type: ignore[arg-type]
    )
    for by, values in {
        None: {""},
        "session_id": {"", "s"},
        "provider": {"openai", "other"},
        "model": {"openai:gpt-5", "other:thing"},
        "tag:tenant": {"", "acme"},
    }.items():
        found = await rows(store, by=by)
        assert {each.value for each in found} == values
        assert sum(each.nano_usd for each in found) == 2 * 1234
        for value in values:
            assert await rows(store, by=by, value=value) == [each for each in found if each.value == value]


async def test_sums_are_by_slot(store: Store, make: Maker) -> None:
    """A call counts in the slot of its start. Calls that started before the window do not count."""
    for number, hours in enumerate((-1, 0, 0, 2)):
        start = make.started(f"req_{number}")
        await store.write(
            [msgspec.structs.replace(start, ts_us=T0 + hours * HOUR_US + 5), make.completed(f"req_{number}")]
        )
    found = await rows(store, since_us=T0, slot_us=HOUR_US)
    assert found == [row(2 * 1234, 220, 2), row(1234, 110, slot=2)]


async def test_repriced_calls_count_with_the_requested_prices(store: Store, make: Maker) -> None:
    """A query uses the prices at the time of the call, or the current ones."""
    await store.write([make.started(), make.completed()])
    await store.reprice(PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second"))
    assert (await rows(store))[0].nano_usd == 1234
    (now,) = await store.calls()
    assert (await rows(store, current=True))[0].nano_usd == now.cost.nano_usd != 1234


# Unknown costs are counted separately in every sum over calls.

TABLE = PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second")
UNPRICED = Cost(None, CostSource.UNPRICED, "000000000000", "no price")
ESTIMATE = TokenUsage(7, 3, source=UsageSource.ESTIMATED)
COUNTS = {"calls": 10, "estimated": 1, "unpriced": 1, "unknown": 5}


async def a_faulty_day(store: Store, make: Maker) -> None:
    """Write ten calls: one completed, one unpriced, one estimated, two refused, and five of unknown cost."""
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
async def test_every_sum_counts_calls_of_unknown_cost(store: Store, make: Maker, summed: bool) -> None:
    """Sums by any key, statistics and sessions have the same four counts. No unknown cost is in an amount."""
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
    unknown = {"cancelled", "timed out", "broke off", "lost", "runs"}
    assert {row.request_id for row in await store.calls(CallFilter(unknown=True))} == unknown
    calls = await store.calls()
    assert {row.request_id for row in calls if row.unknown} == unknown
    assert sum((row.sum for row in calls), CostSum()) == CostSum(1239, **COUNTS)


async def test_a_repricing_reports_calls_of_unknown_cost(store: Store, make: Maker) -> None:
    """The report, its lines and the history have the counts: for dry and real runs, for all calls or with a
    filter.
    """
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
    """Sums by day and reports work. Such days have a sign and more digits."""
    far = 2**62
    for name, moment in (("far", far), ("back", -far), ("now", T0)):
        await store.write([make.completed(name, ts_us=moment)])
    days = {row.key[0]: row.calls for row in await store.costs(by=("day",))}
    assert days == {"+148108-07-06": 1, "-144169-06-28": 1, "2026-09-21": 1}
    report = await store.reprice(TABLE)
    assert {line.day for line in report.days} == set(days)


# Impossible counts, as a broken server reports them: every sum has a result in both stores.

MOST = (1 << 63) - 1
ABOUT = pytest.approx(3 * MOST, rel=1e-12)


async def store_absurd(store: Store, make: Maker, cost: int = 1234, *, summed: bool = False) -> None:
    for number in range(3):
        usage = TokenUsage(input_tokens=MOST - number, output_tokens=MOST, cached_input_tokens=MOST)
        ids = {"session_id": "s", "tags": {"team": "a"}}
        request = f"req_{number}"
        end = make.completed(request, usage=usage, cost=Cost(cost, CostSource.COMPUTED, "000000000000"), **ids)
        await store.write([make.started(request, **ids), end])
        if summed:
            await store._database.write(sum_up)


@pytest.mark.parametrize("summed", [False, True])
async def test_costs_sessions_and_statistics_have_a_result(store: Store, make: Maker, summed: bool) -> None:
    await store_absurd(store, make, summed=summed)
    for by in ((), ("model",), ("session_id",), ("tag:team",), ("day",), ("provider", "status")):
        (row,) = await store.costs(by=by)
        assert (row.calls, row.cost_nano_usd) == (3, 3 * 1234)
        assert (row.output_tokens, row.cached_input_tokens) == (ABOUT, ABOUT)
        assert row.total_input_tokens == pytest.approx(6 * MOST, rel=1e-12)
        assert isinstance(row.output_tokens, int)
    (session,) = await store.sessions()
    (statistics,) = await store.statistics()
    assert (session.output_tokens, statistics.output_tokens) == (ABOUT, ABOUT)
    assert isinstance(session.output_tokens, int)


@pytest.mark.parametrize("cost", [1234, MOST])
async def test_spending_of_impossible_counts_has_a_result(store: Store, make: Maker, cost: int) -> None:
    await store_absurd(store, make, cost)
    for by in (None, "session_id", "model", "tag:team"):
        for current in (True, False):
            ((row,),) = (await store.spending([SpendingQuery(by=by, current=current)], "run_other")).rows
            assert (row.calls, row.nano_usd) == (3, pytest.approx(3 * cost, rel=1e-12))
            assert row.tokens == pytest.approx(9 * MOST, rel=1e-12)


# Calls as CSV, JSON lines and Parquet: every row, exact amounts, bounded memory, and complete files or none.

on_a_file = pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # the form does not depend on the store

EXPORT_TABLE = PriceTable.from_rows([PriceRow(model="openai:*", output=7)], "second")


async def as_csv(store: Store, **options: object) -> list[dict[str, str]]:
    file = io.BytesIO()
    await export_calls(store, file, "csv", **options)  # type: ignore[arg-type]
    return list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))


async def as_objects(store: Store, **options: object) -> list[dict[str, object]]:
    file = io.BytesIO()
    await export_calls(store, file, "jsonl", **options)  # type: ignore[arg-type]
    return [json.loads(line) for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("page", [2, 100])
async def test_every_attempt_is_a_row_in_the_order_of_storing(store: Store, make: Maker, page: int) -> None:
    await fill(store, make, 7)
    rows = await as_objects(store, page=page)
    assert [row["request_id"] for row in rows] == [f"r{number}" for number in range(7)]
    assert [row["request_id"] for row in await as_csv(store, page=page)] == [row["request_id"] for row in rows]
    assert [row["call_id"] for row in rows] == sorted(row.call_id for row in await store.calls())


async def test_amounts_are_integers_and_exact_decimal_texts(store: Store, make: Maker) -> None:
    """An amount that a float cannot represent is exact to the last nano-dollar. An unknown amount is empty."""
    await fill(store, make)
    priced, failed, unpriced = await as_objects(store)
    assert priced["cost_nano_usd"] == 123_456_789_012_345_678
    assert priced["cost_usd"] == "123456789.012345678"
    assert float(str(priced["cost_usd"])) != Decimal(str(priced["cost_usd"]))
    assert (unpriced["cost_nano_usd"], unpriced["cost_usd"], unpriced["cost_source"]) == (None, None, "unpriced")
    assert unpriced["cost_reason"] == "no price"
    assert (failed["cost_nano_usd"], failed["cost_source"], failed["input_tokens"]) == (None, None, None)
    in_csv = [(row["cost_nano_usd"], row["cost_usd"]) for row in await as_csv(store)]
    assert in_csv == [("123456789012345678", "123456789.012345678"), ("", ""), ("", "")]


async def test_an_exported_row_has_the_values_of_the_store(store: Store, make: Maker) -> None:
    await fill(store, make)
    row = (await as_objects(store))[0]
    assert list(row) == [name for name, _, _ in COLUMNS]
    (stored,) = await store.calls(CallFilter(request_id="r0"))
    assert row["started_us"] == stored.started_us
    assert row["started"] == "2026-09-21T14:13:21.000000+00:00"
    assert (row["total_input_tokens"], row["cached_input_tokens"], row["reasoning_tokens"]) == (7, 4, 1)
    assert (row["streamed"], row["usage_source"], row["status"]) == (True, "reported", "completed")
    assert json.loads(str(row["tags"])) == {"team": "a", "n": "0"}


async def test_filters_and_price_versions_are_those_of_the_store(store: Store, make: Maker) -> None:
    await fill(store, make)
    await store.reprice(EXPORT_TABLE)
    (row,) = await as_objects(store, where=CallFilter(request_id="r0"))
    assert (row["cost_nano_usd"], row["cost_pricing_version"]) == (None, EXPORT_TABLE.version)
    assert row["cost_reason"] == "no input rate for openai:gpt-5"
    assert row["at_call_time_nano_usd"] == 123_456_789_012_345_678
    await store.use_prices(None)
    (row,) = await as_objects(store, where=CallFilter(request_id="r0"))
    assert row["cost_nano_usd"] == row["at_call_time_nano_usd"]
    (row,) = await as_objects(store, where=CallFilter(request_id="r0"), under=EXPORT_TABLE.version)
    assert row["cost_pricing_version"] == EXPORT_TABLE.version
    assert len(await as_objects(store, where=CallFilter(session_id="s0"))) == 2


@on_a_file
async def test_text_of_a_provider_is_no_formula_in_a_spreadsheet(store: Store, make: Maker) -> None:
    """The text is quoted as CSV requires, and is never a formula."""
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", 'a "b", c\nd', "ü\udc80"]
    for number, text in enumerate(texts):
        await store.write([make.completed(f"req_{number}", served_model=text)])
    for row, text in zip(await as_csv(store), texts, strict=True):
        assert row["served_model"].removeprefix("'") == text.replace("\udc80", "?")
        assert not row["served_model"].startswith(("=", "+", "-", "@", "\t"))


def _in_words(row: dict[str, object]) -> dict[str, object]:
    """A row of Parquet whose times and decimals are written as in CSV and JSON lines."""
    return {name: _in_word(value) for name, value in row.items()}


def _in_word(value: object) -> object:
    match value:
        case datetime():
            return iso_moment(int(value.timestamp()) * 1_000_000 + value.microsecond)
        case Decimal():
            return f"{value:.9f}"
        case _:
            return value


async def test_parquet_has_typed_columns_and_the_same_values(
    store: Store, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are timestamps in UTC, US dollars are exact decimals, and an unknown value is null."""
    monkeypatch.setattr("callboard.tracestore.export._ROW_GROUP", 3)
    parquet = pytest.importorskip("pyarrow.parquet")
    await fill(store, make, 7)
    assert await export_calls(store, tmp_path / "calls.parquet", "parquet", page=2) == 7
    table = parquet.read_table(tmp_path / "calls.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["cost_nano_usd"], types["started_us"]) == ("int64", "int64")
    assert {types[name] for name in ("started", "finished")} == {"timestamp[us, tz=UTC]"}
    assert {types[name] for name in ("cost_usd", "at_call_time_usd")} == {"decimal128(28, 9)"}
    assert [_in_words(row) for row in table.to_pylist()] == await as_objects(store)
    known = [row["cost_nano_usd"] for row in table.to_pylist() if row["cost_nano_usd"] is not None]
    pc = pytest.importorskip("pyarrow.compute")
    assert known
    assert pc.sum(table["cost_usd"]).as_py() == Decimal(sum(known)).scaleb(-9)
    assert parquet.ParquetFile(tmp_path / "calls.parquet").num_row_groups == 2


@on_a_file
@pytest.mark.parametrize("format", FORMATS)
async def test_the_trace_file_is_never_overwritten(store: Store, format: Format) -> None:
    path = store.path.parent / "." / store.path.name
    with pytest.raises(ConfigurationError, match="is the trace file"):
        await export_calls(store, path, format)
    assert await store.calls() == []


@on_a_file
async def test_an_export_of_nothing_is_a_table_without_rows(store: Store, tmp_path: Path) -> None:
    assert await export_calls(store, tmp_path / "none.csv", "csv") == 0
    assert (tmp_path / "none.csv").read_text().startswith("call_id,run_id,request_id,")
    assert await as_objects(store) == []


@on_a_file
async def test_memory_does_not_grow_with_the_number_of_calls(store: Store, make: Maker) -> None:
    class Nowhere(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object, /) -> int:
            return len(data)  # type: ignore[arg-type]

    async def peak() -> int:
        tracemalloc.start()
        try:
            await export_calls(store, cast("IO[bytes]", Nowhere()), "jsonl", page=10)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    await fill(store, make, 40)
    await peak()  # objects that are created once
    few = await peak()
    for number in range(9):
        more = Maker(f"run_{number}")
        await store.write([more.completed(f"more{number}_{each}") for each in range(40)])
    assert await peak() < few * 1.5

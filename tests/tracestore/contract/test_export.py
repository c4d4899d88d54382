"""Calls as CSV, JSON lines and Parquet: every row, exact money, bounded memory, whole files or none."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from callboard.bus import ConfigurationError
from callboard.tracestore import CallFilter, PriceRow, PriceTable, Store
from callboard.tracestore.export import FORMATS, Format, export_calls
from callboard.tracestore.export.calls import COLUMNS
from callboard.tracestore.timestamps import iso_moment

from ..trace_making import Maker, fill

pytestmark = pytest.mark.anyio

TABLE = PriceTable.from_rows([PriceRow(model="openai:*", output=7)], "second")


async def as_csv(store: Store, **options: object) -> list[dict[str, str]]:
    file = io.BytesIO()
    await export_calls(store, file, "csv", **options)  # type: ignore[arg-type]
    return list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))


async def as_objects(store: Store, **options: object) -> list[dict[str, object]]:
    file = io.BytesIO()
    await export_calls(store, file, "jsonl", **options)  # type: ignore[arg-type]
    return [json.loads(line) for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_every_attempt_is_a_row_in_the_order_of_storing(store: Store, make: Maker, page: int) -> None:
    """In whatever pages they are read, each once."""
    await fill(store, make, 7)
    rows = await as_objects(store, page=page)
    assert [row["request_id"] for row in rows] == [f"r{number}" for number in range(7)]
    assert [row["request_id"] for row in await as_csv(store, page=page)] == [row["request_id"] for row in rows]
    assert [row["call_id"] for row in rows] == sorted(row.call_id for row in await store.calls())


async def test_money_is_an_integer_and_an_exact_decimal_text(store: Store, make: Maker) -> None:
    """An amount that no float can hold comes through to the last nano-dollar; unknown is empty."""
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


async def test_a_row_says_what_the_store_knows(store: Store, make: Maker) -> None:
    """Times both ways, usage in its buckets, tags as JSON."""
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
    """The cost under a version stands beside the one at call time."""
    await fill(store, make)
    await store.reprice(TABLE)
    (row,) = await as_objects(store, where=CallFilter(request_id="r0"))
    assert (row["cost_nano_usd"], row["cost_pricing_version"]) == (None, TABLE.version)
    assert row["cost_reason"] == "no input rate for openai:gpt-5"
    assert row["at_call_time_nano_usd"] == 123_456_789_012_345_678
    await store.use_prices(None)
    (row,) = await as_objects(store, where=CallFilter(request_id="r0"))
    assert row["cost_nano_usd"] == row["at_call_time_nano_usd"]
    (row,) = await as_objects(store, where=CallFilter(request_id="r0"), under=TABLE.version)
    assert row["cost_pricing_version"] == TABLE.version
    assert len(await as_objects(store, where=CallFilter(session_id="s0"))) == 2


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", 'a "b", c\nd', "ü\udc80"])
async def test_what_a_provider_wrote_is_text_in_a_spreadsheet(store: Store, make: Maker, text: str) -> None:
    """Quoted as CSV wants it, and never a formula."""
    await store.write([make.started(), make.completed(served_model=text)])
    (row,) = await as_csv(store)
    assert row["served_model"].removeprefix("'") == text.replace("\udc80", "?")
    assert not row["served_model"].startswith(("=", "+", "-", "@", "\t"))


def _in_words(row: dict[str, object]) -> dict[str, object]:
    """A row of Parquet with moments and decimals as CSV and JSON lines write them."""
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
    monkeypatch.setattr("callboard.tracestore.export.calls._ROW_GROUP", 3)
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


@pytest.mark.parametrize("format", FORMATS)
async def test_the_trace_file_is_never_overwritten(store: Store, format: Format) -> None:
    """Not even when it is named by another path."""
    path = store.path.parent / "." / store.path.name
    with pytest.raises(ConfigurationError, match="is the trace file"):
        await export_calls(store, path, format)
    assert await store.calls() == []


async def test_an_export_of_nothing_is_a_table_without_rows(store: Store, tmp_path: Path) -> None:
    """CSV still says what its columns are."""
    assert await export_calls(store, tmp_path / "none.csv", "csv") == 0
    assert (tmp_path / "none.csv").read_text().startswith("call_id,run_id,request_id,")
    assert await as_objects(store) == []


async def test_memory_does_not_grow_with_the_number_of_calls(store: Store, make: Maker) -> None:
    """Ten times as many calls, the same peak."""

    class Nowhere(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object, /) -> int:
            return len(data)  # type: ignore[arg-type]

    async def peak() -> int:
        tracemalloc.start()
        try:
            await export_calls(store, Nowhere(), "jsonl", page=50)  # type: ignore[arg-type]
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    await fill(store, make, 200)
    await peak()  # what is made once
    few = await peak()
    for number in range(9):
        more = Maker(f"run_{number}")
        await store.write([more.completed(f"more{number}_{each}") for each in range(200)])
    assert await peak() < few * 1.5

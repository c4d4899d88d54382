"""What `callboard sql --schema` says, held against the tables of both stores and against the rows in Python."""

from __future__ import annotations

import io
import json
import re
import sqlite3
from contextlib import closing

import msgspec
import pytest

from callboard.bus.values.usage import Cost, TokenUsage
from callboard.tracestore import CallRow, PriceRow, PriceTable, Store
from callboard.tracestore.described import BOOKKEEPING, TABLES
from callboard.tracestore.export import export_calls

from ..trace_making import Maker, fill
from .conftest import Place

pytestmark = pytest.mark.anyio

COLUMNS = {
    "sqlite": """
        SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
         WHERE t.type IN ('table', 'view') ORDER BY t.name, c.cid
    """,
    "postgres": """
        SELECT table_name, column_name FROM information_schema.columns
         WHERE table_schema = 'callboard' ORDER BY table_name, ordinal_position
    """,
}
MORE_ON_A_SERVER = {("runs", "shipped_from")}


async def test_every_table_and_every_column_has_its_sentence(place: Place, store: Store) -> None:
    """And none is described that isn't there."""
    if place.kind == "sqlite":  # whose own tables no free statement may read
        with closing(sqlite3.connect(place.folder / "trace.db")) as connection:
            rows = connection.execute(COLUMNS["sqlite"]).fetchall()
    else:
        rows = (await store.sql(COLUMNS["postgres"], limit=10_000)).rows
    columns = {(str(table), str(column)) for table, column in rows if table not in BOOKKEEPING}
    described = {(name, column) for name, table in TABLES.items() for column in table.columns}
    assert described - columns == (MORE_ON_A_SERVER if place.kind == "sqlite" else set())
    assert columns - described == set()


async def test_call_rows_have_the_names_and_values_of_an_export(store: Store, make: Maker) -> None:
    """Of one in JSON lines, but for its texts for people; the current cost stands beside the one at call time."""
    await fill(store, make, 7)
    await store.reprice(PriceTable.from_rows([PriceRow(model="openai:*", output=7)], "second"))
    file = io.BytesIO()
    await export_calls(store, file, "jsonl")
    found = await store.sql("SELECT * FROM call_rows ORDER BY call_id", limit=100)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    for exported, row in zip(map(json.loads, file.getvalue().splitlines()), rows, strict=True):
        for text in ("started", "finished", "cost_usd", "at_call_time_usd"):
            del exported[text]
        exported["tags"], row["tags"] = json.loads(exported["tags"]), json.loads(str(row["tags"]))
        assert {name: row[name] for name in exported} == exported
    assert {row["cost_pricing_version"] for row in rows} != {row["at_call_time_pricing_version"] for row in rows}


def test_call_rows_are_called_as_in_python() -> None:
    """A nested name has an underscore for its point; counts of tokens and the tier stand by themselves."""
    for name, column in TABLES["call_rows"].columns.items():
        path = column.in_python or name
        assert name in (path.replace(".", "_"), path.removeprefix("usage."))
        assert path.partition(".")[0] in CallRow.__struct_fields__


def test_each_is_a_sentence() -> None:
    """It begins like one and ends like one."""
    meanings = [table.meaning for table in TABLES.values()] + list(BOOKKEEPING.values())
    meanings += [column.meaning for table in TABLES.values() for column in table.columns.values()]
    assert [each for each in meanings if not re.fullmatch(r"[A-Z][^|]*\.", each)] == []


def test_a_column_of_calls_is_called_as_in_python() -> None:
    """Or what it is called there stands beside it; so everything of a `CallRow` is found in SQL."""
    names = {column.in_python or name for name, column in TABLES["calls"].columns.items()}
    fields = {name for name in CallRow.__struct_fields__ if name not in ("usage", "cost", "at_call_time")}
    fields |= {f"usage.{name}" for name in TokenUsage.__struct_fields__}
    fields |= {f"at_call_time.{name}" for name in Cost.__struct_fields__}
    only_in_python = {
        "usage.reported_cost_nano_usd",
        "usage.upstream_cost_nano_usd",
    }
    only_in_sql = {"the dimension day", "reserved_nano", "reserved_tokens"}
    assert fields - names == only_in_python
    assert names - fields == only_in_sql
    assert {column.in_python for column in TABLES["call_cost"].columns.values()} - {None} == {
        f"cost.{field.name}" for field in msgspec.structs.fields(Cost) if field.name in ("nano_usd", "reason")
    }

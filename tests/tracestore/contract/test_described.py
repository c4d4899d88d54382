"""What `callboard sql --schema` says, held against the tables of both stores and against the rows in Python."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import msgspec
import pytest

from bus.values.usage import Cost, TokenUsage
from tracestore import CallRow, Store
from tracestore.described import BOOKKEEPING, TABLES

from .conftest import Place

pytestmark = pytest.mark.anyio

COLUMNS = {
    "sqlite": """
        SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
         WHERE t.type = 'table' ORDER BY t.name, c.cid
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

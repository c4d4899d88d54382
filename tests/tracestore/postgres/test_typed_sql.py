"""SQL that somebody typed only reads, for so long and so much."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callboard.bus.errors import StoreError
from tests.tracestore.trace_making import Maker
from callboard.tracestore import PostgresStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(dsn: str, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(dsn, path=tmp_path / "trace") as opened:
        await opened.write([Maker().started("r1")])
        yield opened


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM calls",
        "CREATE TEMP TABLE t (a int)",
        "WITH gone AS (DELETE FROM calls RETURNING id) SELECT * FROM gone",
        "SELECT 1; DELETE FROM calls",
        "SELECT 1; COMMIT; DELETE FROM calls",
        "EXPLAIN ANALYZE DELETE FROM calls",
        "COMMIT",
        "SET transaction_read_only = off",
        "COPY calls TO '/tmp/calls'",
        "SELECT nextval('events_id_seq')",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT ?",
        "no SQL at all",
        "",
    ],
)
async def test_it_does_nothing_but_read(store: PostgresStore, statement: str) -> None:
    """Whatever would write, or is no one statement, is refused."""
    with pytest.raises(StoreError):
        await store.sql(statement)
    assert len(await store.calls()) == 1


async def test_what_it_answers(store: PostgresStore) -> None:
    """Parameters, a plan, values of PostgreSQL's own types as text, and the first rows of many."""
    found = await store.sql("SELECT request_id, '%?' AS sign FROM calls WHERE request_id = ?", ["r1"])
    assert (found.columns, found.rows) == (("request_id", "sign"), (("r1", "%?"),))
    assert (await store.sql("SELECT 100 % 7 AS rest")).rows == ((2,),)
    assert "Scan" in str((await store.sql("EXPLAIN SELECT * FROM calls")).rows[0][0])
    found = await store.sql("SELECT generate_series(1, 100000)", limit=3)
    assert (found.rows, found.truncated) == (((1,), (2,), (3,)), True)
    assert (await store.sql("SELECT date '2026-01-02', 1.5, sum(3::bigint)")).rows == (("2026-01-02", 1.5, 3),)


async def test_it_ends_in_time(store: PostgresStore) -> None:
    """Nobody waits for it meanwhile, and the error says why."""
    with pytest.raises(StoreError, match=r"took longer than 0\.2 s"):
        await store.sql("SELECT pg_sleep(10)", seconds=0.2)
    with pytest.raises(ValueError, match="limit"):
        await store.sql("SELECT 1", limit=-1)

"""Retention in PostgreSQL: months are dropped, and nobody deletes anything otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bus import StoreError
from callboard.tracestore import PostgresStore
from callboard.tracestore.postgres import upkeep as pruning

from .contract.test_pruning import NOVEMBER, fill

pytestmark = pytest.mark.anyio


async def test_a_month_before_the_cutoff_is_dropped(postgres_dsn: str, tmp_path: Path) -> None:
    """Its partition goes as a whole; what stays of it stands in a new one, under its old number."""
    async with PostgresStore(postgres_dsn, path=tmp_path / "trace") as store:

        async def months() -> dict[str, int]:
            names = await store.sql(
                "SELECT inhrelid::regclass::text, inhrelid::bigint FROM pg_inherits"
                " WHERE inhparent = 'events'::regclass AND inhrelid::regclass::text ~ '[0-9]'"
            )
            return dict(names.rows)  # type: ignore[arg-type]

        await fill(store)
        numbered = {event.seq: number for number, event in await store.numbered_events(request_id="req_open")}
        before = await months()
        assert sorted(before) == ["events_202608", "events_202610", "events_202611"]
        await store.prune(before=NOVEMBER)
        after = await months()
        assert sorted(after) == ["events_202608", "events_202611"]
        assert after["events_202608"] != before["events_202608"]
        assert after["events_202611"] == before["events_202611"]
        kept = {event.seq: number for number, event in await store.numbered_events(request_id="req_open")}
        assert kept == numbered


async def test_a_month_that_somebody_reads_loses_its_rows_all_the_same(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop waits for a reader a while, and then rows are deleted one by one."""
    import psycopg

    monkeypatch.setattr(pruning, "LOCK_TIMEOUT", "50ms")
    async with PostgresStore(postgres_dsn, path=tmp_path / "trace") as store:
        await fill(store)
        with psycopg.connect(postgres_dsn) as reader:
            reader.execute("SELECT count(*) FROM callboard.events").fetchall()
            report = await store.prune(before=NOVEMBER)
        assert report.events == 8
        assert [event.request_id for event in await store.events()] == ["req_open", "req_4", "req_4"]


async def test_nobody_deletes_or_changes_what_is_kept(postgres_dsn: str, tmp_path: Path) -> None:
    """Events, costs and prices are append-only for whoever is connected."""
    import psycopg

    async with PostgresStore(postgres_dsn, path=tmp_path / "trace") as store:
        await fill(store)
        with psycopg.connect(postgres_dsn, autocommit=True, options="-c search_path=callboard") as other:
            for sql in (
                *("DELETE FROM events", "DELETE FROM call_cost", "UPDATE call_cost SET cost_nano = 0"),
                *("UPDATE events SET ts_us = 0", "UPDATE price_row SET input = 0"),
            ):
                with pytest.raises(psycopg.Error, match=r"append-only|immutable"):
                    other.execute(sql.encode())


async def test_a_backup_names_the_program_that_makes_one(postgres_dsn: str, tmp_path: Path) -> None:
    """The error has a command and no password."""
    async with PostgresStore(postgres_dsn, path=tmp_path / "trace") as store:
        with pytest.raises(StoreError, match="pg_dump --format=custom") as refused:
            await store.backup(tmp_path / "copy")
    assert postgres_dsn not in str(refused.value)

"""Imported calls in a trace file that is shipped to a shared trace."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.engine.imports.importer import import_calls
from callboard.tracestore import CallRow, PostgresStore, PriceRow, PriceTable, Store, TraceStore
from tests.support.session_files import Claude, usage, write
from tests.tracestore.shipping.conftest import lose_marks, shared, ship

__all__ = ["shared"]

pytestmark = pytest.mark.anyio
PRICES = PriceTable([PriceRow(model="anthropic:*", input=3_000_000, output=15_000_000)], "one")


async def rows_of(store: Store) -> list[CallRow]:
    return [msgspec.structs.replace(row, call_id=0) for row in await store.calls(limit=None)]


async def test_corrections_arrive_in_any_batches_and_twice(shared: str, tmp_path: Path) -> None:
    """The shared trace prices a corrected call again, as the file does."""
    session, folder, trace = Claude(), tmp_path / "sessions", tmp_path / "trace.db"
    path = write(session.file(folder), [session.reply(1, usage(3, 5), stop=None), session.reply(2)])
    cheap = PriceTable([PriceRow(model="*:*", input=1_000_000, output=1_000_000)], "cheap")
    async with TraceStore(trace) as local, PostgresStore(shared, path=tmp_path / "there") as there:
        await import_calls(local, "claude-code", folder, prices=PRICES)
        await ship(trace, shared)
        for store in (local, there):
            await store.reprice(cheap)
        write(path, [session.reply(1, usage(3, 90))], append=True)
        await import_calls(local, "claude-code", folder, prices=PRICES)
        await ship(trace, shared, batch=1)
        assert await rows_of(there) == await rows_of(local)
        lose_marks(trace)
        await ship(trace, shared)
        assert await rows_of(there) == await rows_of(local)
        assert sorted(row.cost.nano_usd or 0 for row in await local.calls() if row.cost) == [93_000, 103_000]

"""The costs of a repricing in a trace file, for other tools and for readers."""

from __future__ import annotations

import sqlite3

import pytest

from callboard.bus import StoreError
from callboard.tracestore import TraceStore

from .contract.test_repricing import SECOND, fill
from .trace_making import Maker

pytestmark = pytest.mark.anyio


async def test_a_stored_cost_cannot_be_edited(store: TraceStore, make: Maker) -> None:
    """Price versions and costs are append-only for every tool that opens the file."""
    await fill(store, make)
    await store.reprice(SECOND)
    other = sqlite3.connect(store.path)
    for sql in ("UPDATE call_cost SET cost_nano = 0", "UPDATE price_row SET input = 0"):
        with pytest.raises(sqlite3.IntegrityError):
            other.execute(sql)
    other.close()


async def test_a_reader_can_ask_what_if(store: TraceStore, make: Maker) -> None:
    """A dry run works on a file opened for reading; a real one is refused."""
    await fill(store, make)
    async with TraceStore.open_readonly(store.path) as reader:
        report = await reader.reprice(SECOND, dry_run=True)
        assert report.sum_after_nano_usd == 700_000
        with pytest.raises(StoreError, match="reading only"):
            await reader.reprice(SECOND)

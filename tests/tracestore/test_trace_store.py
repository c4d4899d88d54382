"""What goes into the store comes out: events as they were, calls as their events say."""

from __future__ import annotations

import sqlite3

import pytest

from callboard.tracestore import TraceStore

from .trace_making import Maker, sql

pytestmark = pytest.mark.anyio


async def test_stored_events_cannot_be_edited(store: TraceStore, make: Maker) -> None:
    """Not even with another tool: a trigger stands in the way."""
    await store.write([make.started()])
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        sql(store.path, "UPDATE events SET data = '{}'")

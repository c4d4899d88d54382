"""Engines for tests of the gateway's clients and conversations, with each kind of trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.engine import Engine
from callboard.engine.gateway.clients import check_client, issue_key
from callboard.tracestore import PostgresStore, PriceRow, PriceTable, Store, TraceStore
from callboard.tracestore.gateway import Client

from ..support.engines import registry
from ..support.postgres_server import why_not
from ..support.scripted import Say

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")
SENT = 65
"""The upper limit of an estimate of 10 tokens."""
ONE = SENT * 1000 + 100 * 2000
"""The highest cost in nano-USD of a message with 100 output tokens."""

Stores: TypeAlias = Callable[[], Store]
"""A function that creates another store on the trace of a test. The store is not open."""


def stores_of(kind: str, request: pytest.FixtureRequest, folder: Path, clock: Clock = SYSTEM_CLOCK) -> Stores:
    """The stores of a test, in a file or on a server."""
    if kind == "sqlite":
        return lambda: TraceStore(folder / "trace.db", clock=clock)
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    dsn: str = request.getfixturevalue("postgres_dsn")
    return lambda: PostgresStore(dsn, path=folder / "trace", clock=clock)


def engine_on(store: Store, *replies: Say, **options: Any) -> Engine:
    """An engine with a scripted adapter and this store."""
    return Engine(models=registry(*replies), store=store, prices=TABLE, **options)


async def added(store: Store, client: Client, now_us: int = 1) -> str:
    """Add a client, as the command does in another process. Returns its key."""
    key, row = issue_key(client.name, now_us)
    assert await store.gateway.add_client(check_client(client), row)  # type: ignore[attr-defined]
    return key

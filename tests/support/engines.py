"""Engines with scripted adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from adapters import AdapterConfig
from bus import Envelope, Lossless, Subscription
from engine import AdapterEntry, Engine, ModelEntry, ModelRegistry
from engine.middleware import MiddlewareLike
from tests.support.scripted import Say, scripted_type
from tracestore import PriceTable


def registry(*replies: Say, **others: list[Say]) -> ModelRegistry:
    """Adapter `s` with model `s:m` and these replies, and one more for each keyword."""
    scripts = {"s": list(replies), **others}
    adapters = {
        name: AdapterEntry(name=name, type=scripted_type(*script), config=AdapterConfig())
        for name, script in scripts.items()
    }
    models = {f"{name}:m": ModelEntry(id=f"{name}:m", adapter=name, wire_name="m") for name in scripts}
    return ModelRegistry(adapters, models)


@asynccontextmanager
async def running(
    *replies: Say,
    store: Path | None = None,
    prices: PriceTable | None = None,
    middleware: Sequence[MiddlewareLike] = (),
    **others: list[Say],
) -> AsyncIterator[tuple[Engine, Subscription]]:
    """An engine, and a subscription to everything that it publishes."""
    engine = Engine(
        models=registry(*replies, **others),
        store=store,
        trace=store is not None,
        prices=prices or PriceTable.default(),
        middleware=middleware,
    )
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    async with engine:
        yield engine, events


def topics(envelopes: list[Envelope], prefix: str) -> list[str]:
    """The topics of the envelopes that begin so."""
    return [envelope.topic for envelope in envelopes if envelope.topic.startswith(prefix)]

"""Engines with scripted adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callboard.adapters import AdapterConfig, CanonicalRequest, Message
from callboard.bus import SYSTEM_CLOCK, Clock, Envelope, Lossless, Subscription
from callboard.engine import AdapterEntry, Budget, Engine, ModelEntry, ModelRegistry, Session
from callboard.engine.middleware import MiddlewareLike
from callboard.tracestore import PriceTable
from tests.support.scripted import Say, scripted_type


def entry(name: str, kind: str, config: AdapterConfig | None = None, **fields: Any) -> AdapterEntry:
    """The entry of an adapter of that type in models.yaml."""
    return AdapterEntry(name=name, type=kind, config=config or AdapterConfig(), **fields)


def model(name: str, **fields: Any) -> ModelEntry:
    """The entry of a model in models.yaml. Its name consists of the adapter's name and the wire name."""
    adapter, _, wire_name = name.partition(":")
    return ModelEntry(**{"id": name, "adapter": adapter, "wire_name": wire_name, **fields})


def serving(*models: ModelEntry, **adapters: AdapterEntry | str) -> ModelRegistry:
    """A registry with these models, on adapters or types of adapters. An adapter without models gets the model
    `name:m`.
    """
    entries = {name: entry(name, given) if isinstance(given, str) else given for name, given in adapters.items()}
    bare = [model(f"{name}:m") for name in entries if name not in {each.adapter for each in models}]
    return ModelRegistry(entries, {each.id: each for each in (*bare, *models)})


def registry(*replies: Say, **others: list[Say]) -> ModelRegistry:
    """A registry with adapter `s`, model `s:m` and these replies, and one more adapter for each keyword."""
    return serving(**{name: scripted_type(*script) for name, script in {"s": list(replies), **others}.items()})


def keeping(path: Path, *replies: Say, models: ModelRegistry | None = None, **options: Any) -> Engine:
    """An engine that stores content in a trace file."""
    return Engine(models=models or registry(*replies), store=path, capture_content=True, **options)


def requests_of(engine: Engine, name: str = "s") -> list[CanonicalRequest]:
    """The requests to a scripted adapter of a running engine."""
    return list(engine._runtime.adapters[name].ref.actor.adapter.requests)  # type: ignore[union-attr]


@asynccontextmanager
async def running(
    *replies: Say,
    store: Path | None = None,
    prices: PriceTable | None = None,
    middleware: Sequence[MiddlewareLike] = (),
    budgets: Sequence[Budget] = (),
    clock: Clock = SYSTEM_CLOCK,
    **others: list[Say],
) -> AsyncIterator[tuple[Engine, Subscription]]:
    """An engine, and a subscription to all its events."""
    engine = Engine(
        models=registry(*replies, **others), store=store, trace=store is not None,
        prices=prices or PriceTable.default(), middleware=middleware, budgets=budgets, clock=clock,
    )  # fmt: skip
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    async with engine:
        yield engine, events


@asynccontextmanager
async def talking(
    *replies: Say, store: Path | None = None, **options: Any
) -> AsyncIterator[tuple[Session, Subscription]]:
    """A session on such an engine, and the subscription."""
    async with running(*replies, store=store) as (engine, events):
        yield engine.session("s:m", **options), events


async def said(session: Session, text: str = "Hi", *, streamed: bool = False, **options: Any) -> Message:
    """The reply of a session, streamed or not."""
    if not streamed:
        return await session.send(text, **options)
    async with session.stream(text, **options) as turn:
        return await turn.message()


def topics(envelopes: list[Envelope], prefix: str) -> list[str]:
    """The topics of the envelopes that begin with a prefix."""
    return [envelope.topic for envelope in envelopes if envelope.topic.startswith(prefix)]

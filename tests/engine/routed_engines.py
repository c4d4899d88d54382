"""Engines with several adapters and fallbacks between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from callboard.adapters import AdapterCapabilities, CanonicalRequest
from callboard.bus import (
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Lossless,
    RoutingDecision,
    Subscription,
)
from callboard.engine import Engine, ModelEntry
from callboard.tracestore import PriceTable
from tests.support.engines import requests_of, serving
from tests.support.scripted import CAPABILITIES, Say, scripted_type
from tests.support.virtual_time import FakeClock


@dataclass
class Rig:
    """An engine with one scripted adapter for each keyword, its events and its clock."""

    engine: Engine
    events: Subscription
    clock: FakeClock
    seen: list[Envelope] = field(default_factory=list)

    def calls(self) -> list[tuple[str, str]]:
        """The calls' events since the last call of this method, as the end of the topic and the model."""
        taken = self.events.take()
        self.seen += taken
        return [
            (envelope.topic.rpartition("_")[2], envelope.data.model)
            for envelope in taken
            if isinstance(envelope.data, LlmCallStarted | LlmCallCompleted | LlmCallFailed)
        ]

    def requests(self, provider: str) -> list[CanonicalRequest]:
        return requests_of(self.engine, provider)


@asynccontextmanager
async def rig(
    models: dict[str, ModelEntry] | None = None,
    prices: PriceTable | None = None,
    capabilities: dict[str, AdapterCapabilities] | None = None,
    **scripts: list[Say],
) -> AsyncIterator[Rig]:
    own = capabilities or {}
    adapters = {
        name: scripted_type(*replies, capabilities=own.get(name, CAPABILITIES))
        for name, replies in scripts.items()
    }
    clock = FakeClock()
    registry = serving(*(models or {}).values(), **adapters)
    engine = Engine(models=registry, trace=False, clock=clock, prices=prices or PriceTable.default())
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    async with engine:
        yield Rig(engine, events, clock)


def routing_of(message: object) -> RoutingDecision:
    decision = message.metadata.routing  # type: ignore[attr-defined]
    return decision

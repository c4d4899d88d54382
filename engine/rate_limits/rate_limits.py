"""The rate limits of one engine: a gate for each adapter and key in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import anyio
import msgspec

from ..models.entries import AdapterEntry
from .gate import Gate, Lesson, aged
from .permit import LiveGate, Permit

MOST_HEARD = 256
"""The number of models of an unused adapter for which the readings of other nodes are kept."""


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One rate limit, as it is now."""

    model: str | None
    """The model as ``provider:name``; None for all models of the adapter."""
    key: str
    """The name of the key; empty for an adapter's only key."""
    kind: Literal["requests", "tokens"]
    source: Literal["declared", "learned"]
    """The source: the configuration, or the provider's headers."""
    limit: float
    """The limit: in any minute if it is declared, in the provider's period if it is learned."""
    left: float
    """The part that is left."""


class RateLimitQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The calls to one model that wait for its rate limits."""

    model: str
    """The model as ``provider:name``."""
    key: str
    waiting: int
    """The number of calls that wait."""
    why: str
    """The reason: ``requests`` or ``tokens`` are used up; ``pause``, which the provider asked for; ``probe``,
    while one call finds out whether it takes requests again; ``turn``, while others come first."""
    opens_in_seconds: float
    """Seconds until the first of them may go, at the earliest."""


class RateLimits:
    def __init__(self, share: Callable[[LiveGate], None] | None = None) -> None:
        """The gates of an engine that has used none."""
        self._share = share
        self.on_learned: Callable[[str, str, Lesson], None] | None = None
        """Called with each lesson about an adapter and a key. Does nothing without other nodes."""
        self._heard: dict[tuple[str, str], dict[str, tuple[Lesson, int]]] = {}
        """The readings of other nodes for adapters and keys that are unused here, with their moments, by models.
        """
        self._gates: dict[tuple[str, str], LiveGate] = {}
        self._entries: dict[tuple[str, str], AdapterEntry] = {}

    def permit(self, entry: AdapterEntry, key: str, model: str, order: int, most: tuple[int, int]) -> Permit:
        """A permit for one call, to be asked for."""
        name = entry.name, key
        live = self._gates.get(name)
        if live is None or self._entries[name] is not entry:
            live = self._declared(name, entry)
        pooled = not key and bool(
            entry.config.key_pool
        )  # the adapter chooses the key of each attempt, and lets it rest
        return Permit(live, model, order, most, entry.config.max_wait_seconds, learns=not pooled)

    def learn(self, adapter: str, key: str, lesson: Lesson, age_us: int) -> None:
        """Take in what another engine has learned."""
        name, observed_us = (adapter, key), int(anyio.current_time() * 1e6) - age_us
        if (live := self._gates.get(name)) is not None:
            self._teach(live, lesson, observed_us)
        elif len(heard := self._heard.setdefault(name, {})) < MOST_HEARD:
            heard[lesson.model] = lesson, observed_us

    @staticmethod
    def _teach(live: LiveGate, lesson: Lesson, observed_us: int) -> None:
        if (still := aged(lesson, max(live.now_us() - observed_us, 0))) is not None:
            live.learn(still, observed_us)

    def is_free(self, adapter: str, model: str, key: str = "") -> bool:
        """Whether a small request to a model would go immediately."""
        live = self._gates.get((adapter, key))
        if live is None or not live.gate.known:
            return True
        return live.gate.is_free(model, live.now_us())

    def of(self, adapter: str) -> Iterator[RateLimit]:
        for live in self._of(adapter):
            now_us = live.known_time_us()
            for room in live.gate.rooms(now_us) if now_us is not None else ():
                yield RateLimit(
                    model=room.model,
                    key=live.key,
                    kind=room.kind,
                    source="learned" if room.learned else "declared",
                    limit=room.limit,
                    left=room.left,
                )

    def queues(self, adapter: str) -> Iterator[RateLimitQueue]:
        """The calls that wait for the limits of an adapter, by their models."""
        for live in self._of(adapter):
            now_us = live.known_time_us()
            for line in live.gate.lines(now_us) if now_us is not None else ():
                yield RateLimitQueue(
                    model=line.model,
                    key=live.key,
                    waiting=line.waiting,
                    why=line.why or "turn",
                    opens_in_seconds=line.opens_in_us / 1e6,
                )

    def _of(self, adapter: str) -> list[LiveGate]:
        return [live for live in self._gates.values() if live.name == adapter]

    def _declared(self, name: tuple[str, str], entry: AdapterEntry) -> LiveGate:
        """The gate of an adapter that is new or may have a new configuration."""
        requests, tokens = entry.config.requests_per_minute, entry.config.tokens_per_minute
        live = self._gates.get(name)
        changes = live is None or live.gate.declared != (requests, tokens)
        if live is None:
            live = self._gates[name] = LiveGate(*name, Gate(requests, tokens))
            if self.on_learned is not None:
                live.on_learned = partial(self.on_learned, *name)
            for lesson, observed_us in self._heard.pop(name, {}).values():
                self._teach(live, lesson, observed_us)
        elif changes:
            live.gate.declare(requests, tokens)
        if changes and self._share is not None and (requests or tokens):
            self._share(live)
        live.changed()
        self._entries[name] = entry
        return live

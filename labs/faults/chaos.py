"""Faults that are injected into a running engine: crashes, failing writes of the store, and changes of the
configuration.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from callboard.adapters.actor import AdapterActor
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus import Envelope, StoreError
from callboard.engine import Engine

from .plan import ChaosPlan


class BreakableStore:
    """Makes the writes of an engine's store fail while `fails` is set."""

    def __init__(self, engine: Engine) -> None:
        self.fails = False
        store = engine.store
        assert store is not None
        write = store.write

        async def sometimes(envelopes: Sequence[Envelope]) -> None:
            if self.fails:
                raise StoreError("injected: the disk is full")
            await write(envelopes)

        store.write = sometimes  # type: ignore[method-assign]


async def perform(
    blows: Iterable[ChaosPlan],
    engine: Engine,
    store: BreakableStore,
    reload: Callable[[str], Awaitable[None]],
    counts: Counter[str],
) -> None:
    """Inject all faults in order, each after its pause. A fault whose target does not exist yet has no effect.

    Args:
        blows: The blows.
        engine: The engine that gets them.
        store: The engine's store.
        reload: Loads the engine's models again, with another configuration of the named provider.
        counts: Counts the blows of each kind that were dealt.
    """
    hosted = await engine._host.running_life()
    for blow in blows:
        await asyncio.sleep(blow.after)
        running = engine._runtime.adapters.running.get(blow.provider)
        actor = running.ref.actor if running is not None else None
        match blow.kind:
            case "actor" if running is not None:
                running.ref.tell("an injected message that no adapter understands")
            case "call" if isinstance(actor, AdapterActor) and isinstance(actor.adapter, HttpAdapter):
                _crash_stream(actor.adapter) if blow.at == "feed" else _crash_once(actor.adapter, blow.at)
            case "writer" if hosted.writer is not None:
                _crash_once(hosted.writer, "_wait")
            case "manager":
                hosted.manager.tell("an injected message that no manager understands")
            case "store":
                store.fails = not store.fails
            case "reload":
                await reload(blow.provider)
            case _:
                continue
        counts[f"chaos {blow.kind}"] += 1


def _crash_once(target: object, what: str) -> None:
    """Make the next call of a method raise an unexpected exception."""

    def crash(*args: object, **options: object) -> object:
        delattr(target, what)
        raise ZeroDivisionError("injected")

    setattr(target, what, crash)


def _crash_stream(adapter: HttpAdapter) -> None:
    """Make the second chunk of the next stream raise an unexpected exception."""
    make = adapter.wire.normaliser

    def make_once(assembler: object) -> object:
        del adapter.wire.normaliser  # type: ignore[method-assign]  # the instance's, not the class's
        made = make(assembler)  # type: ignore[arg-type]
        feed, fed = made.feed, itertools.count()

        def feeding(chunk: bytes) -> object:
            if next(fed) == 1:
                raise ZeroDivisionError("injected into a stream")
            return feed(chunk)

        made.feed = feeding  # type: ignore[method-assign,assignment]
        return made

    adapter.wire.normaliser = make_once  # type: ignore[method-assign,assignment]

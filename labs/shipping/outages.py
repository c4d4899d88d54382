"""Long outages while an engine works: a server that is stopped, and one that hangs without a response."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import anyio

from callboard.bus.events.operation import StoreShippingChanged
from callboard.engine import Engine
from callboard.engine.watching.health import check_store
from tests.support.engines import registry
from tests.support.postgres_server import StartedServer
from tests.support.scripted import Say

from .checks import failures_of

CALLS_PER_SECOND = 20
SLOWEST_CALL_SECONDS = 2.0
"""A call of a scripted model that takes longer was blocked by the outage."""

CATCHES_UP_SECONDS = 60.0
NOTICED_SECONDS = 65.0
"""After this time a hanging server counts as unreachable."""


async def run_outage(
    kind: Literal["stopped", "hanging"], seconds: float, server: StartedServer, dsn: str, trace: Path
) -> tuple[Counter[str], list[str]]:
    """Make calls before, during and after an outage. Returns the figures, and the violations."""
    seen: Counter[str] = Counter()
    failures: list[str] = []
    engine = Engine(models=registry(*[Say("Hello.")] * 100_000), store=trace, ship_to=dsn)
    with engine.bus.subscribe("store.shipping_changed") as told:
        async with engine:
            await _calls(engine, 2.0, seen)
            with _outage(kind, server):
                await _calls(engine, seconds, seen)
                await engine.flush()
                await _note_backlog(engine, seen, failures, told=kind == "stopped" or seconds > NOTICED_SECONDS)
            seen["s until all was there"] = round(await _caught_up(engine, failures))
            await _calls(engine, 2.0, seen)
        states = [each.data.current for each in told.take() if isinstance(each.data, StoreShippingChanged)]
    noticed = kind == "stopped" or seconds > NOTICED_SECONDS
    if noticed and (states[:1] != ["retrying"] or states[-1:] != ["shipping"]):
        failures.append(f"events said {states}")
    if seen["slowest call, ms"] > SLOWEST_CALL_SECONDS * 1000:
        failures.append(f"a call took {seen['slowest call, ms']} ms")
    return seen, failures + await failures_of(trace, dsn)


async def _calls(engine: Engine, seconds: float, seen: Counter[str]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        await engine.generate("s:m", "Hello?")
        seen["calls"] += 1
        seen["slowest call, ms"] = max(seen["slowest call, ms"], round(1000 * (time.monotonic() - began)))
        await anyio.sleep(1 / CALLS_PER_SECOND)


@contextmanager
def _outage(kind: Literal["stopped", "hanging"], server: StartedServer) -> Iterator[None]:
    if kind == "hanging":
        with server.hanging():
            yield
    else:
        server.stop("immediate")
        try:
            yield
        finally:
            server.start()


async def _note_backlog(engine: Engine, seen: Counter[str], failures: list[str], *, told: bool) -> None:
    (check,) = [each for each in await check_store(engine.store) if each.name == "store:shipping"]
    print("   ", check.detail)
    if check.ok and told:
        failures.append("the doctor finds nothing")
    seen["events that waited"] = int(check.detail.partition(" ")[0].replace(",", ""))


async def _caught_up(engine: Engine, failures: list[str]) -> float:
    """The seconds until the shared store has all events."""
    began = time.monotonic()
    shipper = engine._runtime.shipper
    assert shipper is not None
    while not await shipper.shipped(1.0):
        if time.monotonic() - began > CATCHES_UP_SECONDS:
            failures.append("it does not catch up")
            break
        await anyio.sleep(0.1)
    return time.monotonic() - began

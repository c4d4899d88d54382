"""The CPU time of a delta that arrives on its own, with 100, 1,000 and 5,000 streams that send 5,000 deltas a
second together.

First, the streams of all ways are opened; a server for each way delays them. Then the ways alternate in windows of
a second: the streams of one way continue, and the CPU time of this process with all its threads is divided by the
number of events in the window. Opening and ending a stream are not counted; the subject `per_call` measures them.
A figure is the median of the windows that kept the pace, not the minimum: a way that is late reads several events
at a time, which takes less CPU for each. If no window kept the pace, the row shows the nearest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
from contextlib import AsyncExitStack
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.support.reply_models import PROTOCOLS
from tests.support.reply_server import reply_server

from .hosts import settle
from .table import Row, against, run
from .ways import Way, way

DELTAS_A_SECOND = 5_000
LEVELS = (100, 1_000, 5_000)
WAYS = ("hand", "raw", "engine")
HELD = {"x-hold": "1"}
OPENED_AT_ONCE = 200
LEAD_SECONDS = 0.3
"""The seconds between the streams' continuation and the window."""

SPARE_SECONDS = 20.0
"""The length of each stream after its last window, if the machine keeps the pace."""

GATE = 0.9
KEPT = (0.95, 1.05)
"""The range of the pace, relative to the nominal one, in which a window counts. Outside of it, several events
arrive together.
"""


class Found(NamedTuple):
    """The result of a window."""

    spent: float
    """CPU seconds for each event."""

    pace: float
    """Events per second."""


class UnderWay:
    """The open streams of one way, which their server delays."""

    def __init__(self, way: Way, url: str) -> None:
        self._way = way
        self._server = urlsplit(url)
        self._reading: list[asyncio.Future[None]] = []

    async def open(self, count: int) -> None:
        for index in range(count):
            self._reading.append(asyncio.ensure_future(self._way.stream(index)))
            while self._way.opened < len(self._reading) - OPENED_AT_ONCE:
                await self._moment()
        while self._way.opened < count:
            await self._moment()

    async def _moment(self) -> None:
        await asyncio.sleep(0.002)
        self._none_ended()

    def _none_ended(self) -> None:
        for reading in self._reading:
            if reading.done():
                reading.result()
                raise RuntimeError("streams ended while they were measured")

    async def window(self, seconds: float) -> Found:
        self._tell("release")
        await asyncio.sleep(LEAD_SECONDS)
        events, began, spent = self._way.events, time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        spent, took = time.process_time() - spent, time.perf_counter() - began
        events = self._way.events - events
        self._tell("hold")
        self._none_ended()
        return Found(spent / max(1, events), events / took)

    async def finish(self) -> None:
        self._tell("finish")
        await asyncio.gather(*self._reading)

    def _tell(self, what: str) -> None:
        """Send a line to the server without the event loop, because a late way leaves the loop no time."""
        with socket.create_connection((self._server.hostname, self._server.port)) as connection:
            connection.sendall(f"POST /{what} HTTP/1.1\r\n\r\n".encode())
            connection.recv(1024)


async def level(protocol: str, count: int, *, seconds: float, rounds: int) -> list[Row]:
    """The rows for a number of concurrent streams.

    Args:
        protocol: The protocol of the streams.
        count: The number of streams.
        seconds: The length of a window.
        rounds: The number of windows of each way.
    """
    pace = min(50.0, DELTAS_A_SECOND / count)
    deltas = round(pace * (rounds * (seconds + LEAD_SECONDS) + SPARE_SECONDS))
    found: dict[str, list[Found]] = {name: [] for name in WAYS}
    async with AsyncExitStack() as stack:
        under_way = {name: await _opened(stack, name, protocol, count, (deltas, pace)) for name in WAYS}
        gc.collect()
        gc.freeze()  # so the objects of waiting ways do not slow down the collector for the current way
        stack.callback(gc.unfreeze)
        for _ in range(rounds):
            for name, each in under_way.items():
                found[name].append(await each.window(seconds))
        for each in under_way.values():
            await each.finish()
        await settle()
    expected_pace = count * pace
    hand, raw, engine = (_typical(found[name], expected_pace) for name in WAYS)
    title = f"{protocol}, {count:,} streams"
    return [
        against(f"{title}: raw httpx{_kept(raw, expected_pace)}, against by hand", raw.spent, hand.spent),
        against(f"{title}: whole engine{_kept(engine, expected_pace)}", engine.spent, raw.spent, gate=GATE),
    ]


async def _opened(
    stack: AsyncExitStack, name: str, protocol: str, count: int, reply_size: tuple[int, float]
) -> UnderWay:
    """Open the streams of a way on a server of its own, with this number of deltas in total and per second."""
    url = stack.enter_context(reply_server(*reply_size))
    found = UnderWay(await stack.enter_async_context(way(name, url, protocol, HELD)), url)
    await found.open(count)
    return found


def _typical(windows: list[Found], expected_pace: float) -> Found:
    """The median of the windows that kept the pace. If none did, the window that is nearest to it."""
    in_range = sorted(found for found in windows if KEPT[0] <= found.pace / expected_pace <= KEPT[1])
    return (
        in_range[len(in_range) // 2]
        if in_range
        else min(windows, key=lambda found: abs(found.pace / expected_pace - 1))
    )


def _kept(found: Found, expected_pace: float) -> str:
    share = found.pace / expected_pace
    return "" if KEPT[0] <= share <= KEPT[1] else f" (at {share:.0%} of the pace)"


def _allow_open_files() -> None:
    """Raise the limit of open files to the maximum: each stream of each way needs a connection."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _rows(quick: bool) -> list[Row]:
    if quick:
        return await level("chat", 20, seconds=0.5, rounds=1)
    _allow_open_files()
    return [
        row
        for protocol in PROTOCOLS
        for count in LEVELS
        for row in await level(protocol, count, seconds=1.0, rounds=3)
    ]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))

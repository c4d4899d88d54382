"""A stream's log with several readers, compared with direct calls of one function for each reader."""

from __future__ import annotations

import asyncio
from functools import partial

from callboard.bus import StreamLog, TextDelta

from .table import Row, against, in_turns, run

BURST = 10
"""Deltas that arrive together, as in one read from a provider's socket."""
DELTA = TextDelta("a few words ", 0, "msg_b")


class Sink:
    def __init__(self) -> None:
        self.count = 0

    def take(self, event: object) -> None:
        self.count += 1


async def direct(count: int, readers: int) -> None:
    received: list[object] = []
    sinks = [Sink().take for _ in range(readers)]
    for index in range(count):
        received.append(DELTA)
        for take in sinks:
            take(DELTA)
        if index % BURST == 0:
            await asyncio.sleep(0)


async def logged(count: int, readers: int) -> None:
    log: StreamLog[TextDelta] = StreamLog("trn_b")

    async def read() -> None:
        sink = Sink()
        async for event in log.reader():
            sink.take(event)
        if sink.count != count:
            raise RuntimeError(f"a reader got {sink.count} of {count} events")

    tasks = [asyncio.create_task(read()) for _ in range(readers)]
    await asyncio.sleep(0)
    for index in range(count):
        log.append(DELTA)
        if index % BURST == 0:
            await asyncio.sleep(0)
    log.close()
    await asyncio.gather(*tasks)


async def _rows(quick: bool) -> list[Row]:
    count = 2_000 if quick else 20_000
    found: list[Row] = []
    for readers in (1, 5, 10):
        spent = await in_turns(
            {"floor": partial(direct, count, readers), "log": partial(logged, count, readers)},
            repetitions=2 if quick else 7,
        )
        name = f"append and {readers} reader{'s' * (readers > 1)}, per delta"
        found.append(against(name, spent["log"] / count, spent["floor"] / count))
    return found


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))

"""The CPU time of the trace store for each call, compared with sqlite3 alone writing the same number of rows with
the same indexes.
"""

from __future__ import annotations

import asyncio
import tempfile
from itertools import count
from pathlib import Path

from callboard.bus.bus import Bus
from callboard.tracestore import TraceStore, WriterCore

from .store_money import CALLS, money_rows
from .stored_calls import bare_copy, call, envelopes_of, stored_rows
from .table import Row, against, in_turns, run


async def _of_size(folder: Path, calls: int, batches: int, repetitions: int) -> list[Row]:
    """The three figures for batches of this number of calls."""
    rounds = batches * (repetitions + 1)
    seqs = count(1)
    published = [[one for _ in range(calls) for one in call()] for _ in range(rounds)]
    written = [envelopes_of(batch, seqs) for batch in published]
    async with TraceStore(folder / "rows.db") as scratch:
        for batch in written:
            await scratch.write(batch)
    rows = stored_rows(scratch.path, calls)
    bare = bare_copy(folder / "bare.db", scratch.path)

    async def floor() -> None:
        for _ in range(batches):
            events, attempts = rows.pop()
            bare.execute("BEGIN IMMEDIATE")
            for table, values in (("events", events), ("calls", attempts)):
                bare.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
            bare.execute("COMMIT")

    async with TraceStore(folder / "store.db") as store, TraceStore(folder / "writer.db") as behind_writer:
        bus = Bus()
        core = WriterCore.for_bus(behind_writer, bus)
        pump = asyncio.create_task(core.run())

        async def alone() -> None:
            for _ in range(batches):
                await store.write(written.pop())

        async def whole() -> None:
            for _ in range(batches):
                for event, ids in published.pop():
                    bus.publish(event, **ids)  # type: ignore[arg-type]
                await core.flush()

        spent = await in_turns({"floor": floor, "store": alone, "writer": whole}, repetitions=repetitions)
        bus.close()
        await pump
    bare.close()
    each = {name: seconds / batches / calls for name, seconds in spent.items()}
    return [
        against(f"{calls} calls a commit: the store alone, per call", each["store"], each["floor"]),
        against(f"{calls} calls a commit: bus, writer and store, per call", each["writer"], each["floor"]),
    ]


async def _rows(quick: bool) -> list[Row]:
    found: list[Row] = []
    for calls in (10, 40):
        with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
            batches, repetitions = (3, 1) if quick else (400 // calls, 9)
            found += await _of_size(Path(folder), calls, batches, repetitions)
    return found


def rows(quick: bool) -> list[Row]:
    return [*run(_rows(quick)), *run(money_rows(CALLS // 50 if quick else CALLS))]

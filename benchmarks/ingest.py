"""The speed at which `llm.call_*` events pass through bus and writer into the file, and the loop's delay
meanwhile.

The floor of the speed is `sqlite3.executemany` of the same rows into the same tables, with the same indexes,
triggers, settings and transaction sizes. Both are measured in wall time, from the first event to the last commit.

The delay is that of a task that repeatedly sleeps for a millisecond while events are published as fast as the
writer takes them. There are two comparisons: the same task on an idle loop, and on a loop that computes as much
next to a thread that computes without the GIL and writes nothing. The second shows the part of the machine: on a
busy machine, it alone exceeds the gate. Independent of the machine is the CPU time of the loop's own thread
between two looks at its clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from callboard.bus.bus import Bus
from callboard.bus.events.calls import LlmCallCompleted, LlmCallStarted
from callboard.tracestore import TraceStore, WriterCore, WriterOptions

from .stored_calls import Publication, bare_copy, call, envelopes_of, stored_rows
from .table import Row, micros, per_second, percentile, run

AT_ONCE = 64
"""The number of events that are published before the loop may run other tasks."""

MOST_WAITING = 4096
LATE_SECONDS = 0.005
PIECE_SECONDS = 0.0003
"""The seconds that a busy loop computes before it looks at its clock again."""

COMMIT_EVENTS = WriterOptions().batch_events


def call_events(calls: int) -> list[Publication]:
    """The start and end events of this number of concurrent calls, in order."""
    made = [one for _ in range(calls) for one in call() if isinstance(one[0], LlmCallStarted | LlmCallCompleted)]
    return [
        one
        for begin in range(0, len(made), AT_ONCE)
        for half in (0, 1)
        for one in made[begin : begin + AT_ONCE][half::2]
    ]


async def _ingest(published: list[Publication], bus: Bus, core: WriterCore) -> None:
    for begin in range(0, len(published), AT_ONCE):
        for event, ids in published[begin : begin + AT_ONCE]:
            bus.publish(event, **ids)  # type: ignore[arg-type]  # a table of publications
        await asyncio.sleep(0)
        while core.statistics().waiting > MOST_WAITING:  # noqa: ASYNC110 (as admission does)
            await asyncio.sleep(0.0005)
    await core.flush()


async def _watch(late: list[float]) -> None:
    """Append the delay of each wake-up, until cancelled."""
    pause = 0.001
    while True:
        due = time.perf_counter() + pause
        await asyncio.sleep(pause)
        late.append(time.perf_counter() - due)


@contextlib.contextmanager
def _stretches(found: list[float]) -> Iterator[None]:
    """Append the CPU seconds of each iteration of the running loop, in its own thread."""
    loop: Any = asyncio.get_running_loop()
    run_once = loop._run_once

    def timed() -> None:
        began = time.thread_time()
        run_once()
        found.append(time.thread_time() - began)

    loop._run_once = timed
    try:
        yield
    finally:
        del loop._run_once


async def _idle(late: list[float], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_watch(late), seconds)


async def _busy(late: list[float], seconds: float) -> None:
    """The delays of a loop that computes all the time, next to a thread that computes without the GIL."""
    stopped = threading.Event()

    def hash_on() -> None:
        data = bytes(400_000)  # some tenths of a millisecond, about as long as a statement of SQLite
        while not stopped.is_set():
            hashlib.sha256(data)

    beside = threading.Thread(target=hash_on)
    beside.start()
    watcher = asyncio.create_task(_watch(late))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.thread_time()
        while time.thread_time() - began < PIECE_SECONDS:
            pass
        await asyncio.sleep(0)
    await _ended(watcher)
    stopped.set()
    beside.join()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _timed(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """The wall and CPU seconds of the work."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - wall, time.process_time() - cpu


class _Measured(msgspec.Struct):
    """The measurements, in seconds."""

    ours: list[tuple[float, float]] = []
    """Wall and CPU time of each round of Callboard. The first is a warm-up."""
    floor: list[tuple[float, float]] = []
    """Wall and CPU time of each round of the floor. The first is a warm-up."""
    late: list[float] = []
    """The delays of the loop while events were stored."""
    idle: list[float] = []
    """The delays of the idle loop."""
    busy: list[float] = []
    """The delays of the loop while it computed without writing."""
    stretches: list[float] = []
    """The CPU time between two looks at the clock."""


async def _measure(calls: int, rounds: int, *, pause: float) -> _Measured:
    """Measure the rounds of Callboard and of the floor.

    Args:
    calls: The number of calls in a round.
    rounds: The number of rounds after the warm-up.
    pause: The seconds of an idle loop, and of a busy loop, before each round.
    """
    found = _Measured()
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        seqs = count(1)
        async with TraceStore(Path(folder) / "rows.db") as scratch:
            for _ in range(rounds + 1):
                await scratch.write(envelopes_of(call_events(calls), seqs))
        batches = stored_rows(scratch.path, COMMIT_EVENTS // 2)
        bare = bare_copy(Path(folder) / "bare.db", scratch.path)

        async def execute_many() -> None:
            for _ in range(len(batches) // divisor):
                events, attempts = batches.pop()
                bare.execute("BEGIN IMMEDIATE")
                for table, values in (("events", events), ("calls", attempts)):
                    bare.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
                bare.execute("COMMIT")

        async with TraceStore(Path(folder) / "store.db") as store:
            bus = Bus()
            core = WriterCore.for_bus(store, bus)
            pump = asyncio.create_task(core.run())
            for divisor in range(rounds + 1, 0, -1):  # the first round is a warm-up
                found.floor.append(await _timed(execute_many))
                published = call_events(calls)
                gc.collect()
                gc.freeze()  # otherwise the garbage collector would repeatedly scan all the prepared data
                await _idle(found.idle, pause)
                await _busy(found.busy, pause)
                watcher = asyncio.create_task(_watch(found.late if divisor <= rounds else []))
                with _stretches(found.stretches):
                    found.ours.append(await _timed(lambda: _ingest(published, bus, core)))  # noqa: B023 (awaited here)
                await _ended(watcher)
            bus.close()
            await pump
        bare.close()
    gc.unfreeze()
    return found


def _least(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    """The minimum wall time and the minimum CPU time of the rounds."""
    return min(wall for wall, _ in rounds[1:]), min(cpu for _, cpu in rounds[1:])


def rows(quick: bool) -> list[Row]:
    calls, rounds, pause = (200, 1, 0.05) if quick else (8000, 5, 1.0)
    found = run(_measure(calls, rounds, pause=pause))
    events = 2 * calls
    wall, cpu = _least(found.ours)
    bare_wall, bare_cpu = _least(found.floor)
    late, idle = found.late, found.idle
    p99, idle_p99 = percentile(late, 0.99), percentile(idle, 0.99)
    return [
        Row(
            "llm.call_* events, bus to commit, wall",
            per_second(events / wall),
            per_second(events / bare_wall),
            wall / bare_wall,
            "≤ 2×",
            wall <= 2 * bare_wall,
        ),
        Row("the same, CPU for each event", micros(cpu / events), micros(bare_cpu / events), cpu / bare_cpu),
        Row(
            f"lateness of the loop meanwhile, p99 of {len(late):,}",
            micros(p99),
            micros(idle_p99),
            p99 / idle_p99,
            "< 5 ms",
            p99 < LATE_SECONDS,
        ),
        Row("the same, p50", micros(percentile(late, 0.5)), micros(percentile(idle, 0.5))),
        Row("the same, most", micros(max(late)), micros(max(idle))),
        Row("p99 of a loop and a thread as busy that write nothing", micros(percentile(found.busy, 0.99))),
        Row(
            "CPU between two looks at the clock, p99 and most",
            f"{micros(percentile(found.stretches, 0.99))}, {micros(max(found.stretches))}",
        ),
    ]

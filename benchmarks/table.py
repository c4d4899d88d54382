"""Helpers of all subjects: the rows of the table, and alternating measurements."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Row(NamedTuple):
    """One line of the table."""

    name: str
    figure: str
    floor: str = ""
    ratio: float | None = None
    gate: str = ""
    met: bool | None = None
    """Whether the gate is met; None without a gate."""


def per_second(count: float) -> str:
    return f"{count / 1e6:.2f}M/s" if count >= 1e6 else f"{count / 1e3:.0f}k/s"


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def against(name: str, spent: float, floor: float, *, gate: float | None = None) -> Row:
    """A row with CPU seconds, their ratio to the floor, and the maximum of the ratio."""
    ratio = spent / floor
    if gate is None:
        return Row(name, micros(spent), micros(floor), ratio)
    return Row(name, micros(spent), micros(floor), ratio, f"≤ {gate:g}×", ratio <= gate)


async def cpu_of(work: Callable[[], Awaitable[object]]) -> float:
    """The CPU seconds of this process with all threads for one run of the work, without garbage collection."""
    gc.collect()
    before = time.process_time()
    await work()
    return time.process_time() - before


async def in_turns(
    contestants: Mapping[str, Callable[[], Awaitable[object]]], *, repetitions: int, median: bool = False
) -> dict[str, float]:
    """The CPU seconds of each contestant, measured alternately and repeatedly, so that other work on the machine
    affects all alike.

    Returns the minimum or the median of the repetitions. The first round is a warm-up.
    """
    spent: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions + 1):
        for name, work in contestants.items():
            spent[name].append(await cpu_of(work))
    return {name: (statistics.median if median else min)(times[1:]) for name, times in spent.items()}


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def as_row(row: Sequence[Any]) -> Row:
    """A row from (name, figure, floor, ratio, gate). A gate that is a number is the maximum of the ratio."""
    if isinstance(row, Row):
        return row
    name, figure, floor, ratio, gate, *more = row
    met = more[0] if more else None
    if isinstance(gate, int | float) and not isinstance(gate, bool):
        met = ratio <= gate if ratio is not None else met
        gate = f"≤ {gate:g}×"
    return Row(str(name), _text(figure), _text(floor), ratio, gate or "", met)


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def machine() -> str:
    """The date and the machine of the measurements."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}, {processor()}, "
        f"{cores} cores, load {load:.1f}"
    )


def processor() -> str:
    """The name of the processor in /proc/cpuinfo."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def in_markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| row | figure | floor | ratio | gate | |", "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}×"
        mark = {None: "", True: "met", False: "**not met**"}[row.met]
        lines.append(f"| {row.name.strip()} | {row.figure} | {row.floor} | {ratio} | {row.gate} | {mark} |")
    return "\n".join(lines)


def render(title: str, rows: Sequence[Row], width: int = 58) -> str:
    lines = [title]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}×"
        mark = {None: "", True: "met", False: "NOT MET"}[row.met]
        lines.append(
            f"  {row.name:{width}}{row.figure:>14}{row.floor:>14}{ratio:>10}   {row.gate:12}{mark}".rstrip()
        )
    return "\n".join(lines)

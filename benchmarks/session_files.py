"""The CPU time and memory of an import of Claude Code's session files.

    python -m benchmarks session_files

The files are generated and have a gigabyte: sessions with prompts, replies of two lines each, and tool results. As
in real files, tool results are most of the bytes. The floor is msgspec alone: each line is decoded to a struct
with the fields that are used. Each import runs in a process of its own with a new trace file, so that its peak
memory is known. "Again" is a second import of unchanged files.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tests.support.reply_server import ROOT
from tests.support.session_files import Claude, Record, usage, write

from .table import Row

_MEGABYTES = 1000
_GATE_SECONDS = 60.0
"""The maximum CPU seconds for a gigabyte."""
_MOST_RESIDENT = 100
"""The maximum peak memory in megabytes."""
_AGAIN_SECONDS = 3.0

_IMPORT = """
import asyncio, json, resource, sys, time
from pathlib import Path
from callboard.engine.imports.importer import import_calls
from callboard.tracestore import TraceStore

async def main():
    async with TraceStore(Path(sys.argv[2])) as store:
        return await import_calls(store, "claude-code", sys.argv[1])

report = asyncio.run(main())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([time.process_time(), peak, report.new, report.unchanged]))
"""


def make(top: Path, megabytes: float) -> tuple[int, int]:
    """Write session files into a folder. Returns their size in bytes and the number of their calls."""
    chance = random.Random(1)
    text = "".join(chance.choice('abcdefghij klmnop\n"{}') for _ in range(40_000))
    size = calls = sessions = 0
    while size < megabytes * 1e6:
        sessions += 1
        session = Claude(f"{sessions:08d}-0000-4000-8000-{sessions:012d}", f"/src/project-{sessions % 20}")
        session.now = sessions * 3600.0
        records: list[Record | str] = []
        for number in range(360):
            if number % 6 == 0:
                records.append(session.prompt("x" * 300))
            calls += 1
            counts = {"read": chance.randint(0, 150_000), "hour": chance.randint(0, 3000)}
            text_blocks = [{"type": "text", "text": text[: chance.randint(50, 800)]}]
            tool_blocks = [
                {"type": "tool_use", "id": f"toolu_{calls}", "name": "Read", "input": {"path": text[:400]}}
            ]
            records.append(session.reply(calls, usage(3, 2, **counts), stop=None, content=text_blocks))
            out = usage(3, chance.randint(20, 2000), **counts)
            records.append(session.reply(calls, out, stop="tool_use", content=tool_blocks))
            place = chance.randint(0, 20_000)
            read = text[place : place + chance.choice([200, 1000, 3000, 12_000])]
            records.append(session.result(f"toolu_{calls}", read))
        size += write(session.file(top), records).stat().st_size
    return size, calls


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct):
    type: str | None = None
    timestamp: str | None = None
    message: _Message | None = None


def _floor(top: Path) -> float:
    """The CPU seconds of decoding all lines."""
    decode = msgspec.json.Decoder(_Line).decode
    began = time.process_time()
    for path in top.rglob("*.jsonl"):
        with path.open("rb") as stream:
            for line in stream:
                decode(line)
    return time.process_time() - began


def _import(top: Path, trace: Path) -> tuple[float, float, int, int]:
    command = [sys.executable, "-c", _IMPORT, str(top), str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, peak, new, unchanged = json.loads(done.stdout)
    return seconds, peak / 1e6, new, unchanged


def rows(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        top, trace = Path(folder) / "projects", Path(folder) / "trace.db"
        size, calls = make(top, 5 if quick else _MEGABYTES)
        floor = _floor(top)
        seconds, peak, new, _ = _import(top, trace)
        again, _, none, unchanged = _import(top, trace)
        assert (new, none, unchanged) == (calls, 0, len(list(top.rglob("*.jsonl"))))
    done, met = f"{size / 1e6:,.0f} MB with {calls:,} calls", None if quick else seconds <= _GATE_SECONDS
    resident, soon = f"≤ {_MOST_RESIDENT} MB", f"≤ {_AGAIN_SECONDS:g} s"
    return [
        Row(
            done,
            f"{seconds:.1f} s",
            f"{floor:.2f} s",
            seconds / floor,
            "" if quick else f"≤ {_GATE_SECONDS:g} s",
            met,
        ),
        Row("  a megabyte", f"{seconds / size * 1e9:.1f} ms"),
        Row("  a call", f"{seconds / calls * 1e6:.0f} µs"),
        Row("  peak of memory, resident", f"{peak:.0f} MB", gate=resident, met=peak <= _MOST_RESIDENT),
        Row("  again, unchanged, whole process", f"{again:.2f} s", gate=soon, met=again <= _AGAIN_SECONDS),
    ]

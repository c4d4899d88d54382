"""Broken, truncated, foreign, huge or malicious files of each source only add lines to the report."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.engine.imports.importer import ImportReport, import_calls
from callboard.tracestore import PriceTable, TraceStore
from tests.support.depth import quick_if
from tests.tracestore.contract.conftest import Place

from .samples import LINES, SAMPLES, more

pytestmark = pytest.mark.anyio
PRICES = PriceTable.default()

BROKEN = {
    "empty": b"", "noise": random.Random(1).randbytes(5000), "text": b"Hello there\nthis is no record\n",
    "zeros": bytes(5000), "deep lists": b"[" * 100_000 + b"\n", "deep objects": b'{"usage":' * 50_000 + b"\n",
    "deep and whole": b'{"usage":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n",
    "long number": b'{"type":"assistant","usage":' + b"9" * 10_000 + b"}\n",
    "surrogate": b'{"type":"assistant","usage":"\\ud800"}\n',
    "other values": b'[]\n""\n7\nnull\n{}\n[{}]\n{"data":[7]}\n',
}  # fmt: skip


async def imported(source: str, tmp_path: Path, *places: Path, content: bool = True) -> ImportReport:
    async with TraceStore(tmp_path / "trace.db") as store:
        return await import_calls(store, source, places, prices=PRICES, content=content)


KINDS = (*BROKEN, "cut off", "of another program")


@pytest.mark.parametrize(
    ("source", "kind"),
    quick_if(
        itertools.product(SAMPLES, KINDS),
        lambda n: n < len(KINDS) or n % len(KINDS) == n // len(KINDS),
        "each fault in each source",
        rows=True,
    ),
)
async def test_a_broken_file_does_not_end_the_import(source: str, kind: str, tmp_path: Path) -> None:
    good = SAMPLES[source](tmp_path / "there")
    broken = good.with_name(f"broken{good.suffix}")
    if kind == "cut off":
        broken.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    elif kind == "of another program":
        other = "otlp" if source != "otlp" else "codex"
        broken.write_bytes(SAMPLES[other](tmp_path / "other").read_bytes())
    else:
        broken.write_bytes(BROKEN[kind])
    report = await imported(source, tmp_path, broken, good)
    assert report.new == 1
    assert "Hidden" not in repr(report.faults)


ODD: list[Any] = [
    None, [], {}, [[]], "", "x\0\ud800\x1b[31m", "a" * 5000, -1, 0, 2**70, 1e308, True, ["x"], {"a": {}},
]  # fmt: skip


def mutated(value: Any) -> Iterator[Any]:
    """Yield copies of a record. Each copy has one part replaced by an odd value."""
    yield from ODD
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, inner in parts:
        for odd in mutated(inner):
            changed: Any = list(value) if isinstance(value, list) else dict(value)
            changed[place] = odd
            yield changed


def with_odd_values(source: str, good: Path) -> Path:
    """Write a file with each record of a sample in every odd form."""
    path = good.with_name(f"odd{good.suffix}")
    if good.suffix != ".db":
        records = [json.loads(line) for line in good.read_text().splitlines()]
        texts = [json.dumps(odd) for record in records for odd in mutated(record)]
        path.write_text("\n".join(texts) + "\n")
        return path
    path.write_bytes(good.read_bytes())
    with sqlite3.connect(path) as made:
        for table in ("message", "part", "responses"):
            if not made.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                continue
            for row in made.execute(f"SELECT * FROM {table}").fetchall():
                for place, value in enumerate(row):
                    is_json = isinstance(value, str) and value.startswith("{")
                    odds = [json.dumps(odd) for odd in mutated(json.loads(value))] if is_json else storable()
                    for odd in odds:
                        made.execute(
                            f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})",
                            (*row[:place], odd, *row[place + 1 :]),
                        )
    made.close()
    return path


def storable() -> list[Any]:
    return [None, "", "x\0\x1b[31m", "a" * 5000, -1, 0, 2**62, 1e308, b"\xff\xfe"]


@pytest.mark.parametrize(
    ("place", "source"),
    quick_if(
        itertools.product(("sqlite", "postgres"), SAMPLES),
        lambda n: n % 2 == 0,
        "each source on both stores",
        rows=True,
    ),
    indirect=["place"],
)
async def test_odd_values_at_every_place_cost_lines_and_no_import(
    source: str, place: Place, tmp_path: Path
) -> None:
    good = SAMPLES[source](tmp_path / "there")
    odd = with_odd_values(source, good)
    more(source, good, 7)
    async with place.store() as store:
        report = await import_calls(store, source, [odd, good], prices=PRICES, content=True)
        known = await import_calls(store, source, [odd, good], prices=PRICES, content=True)
        assert (known.new, known.corrected) == (0, 0)
        rows = await store.calls(limit=None)
        assert len(rows) == report.new >= 2
        assert not [fault for fault in report.faults if "failed with" in fault.why]
        assert all(
            (text or "x").isprintable() for row in rows for text in (row.model, row.session_id, *row.tags.values())
        )


LIMITED = """
import asyncio, sys
from pathlib import Path
from callboard.engine.imports.importer import import_calls
from callboard.tracestore import PriceTable
source, *places = sys.argv[1:]
report = asyncio.run(import_calls(None, source, places, prices=PriceTable.default(), content=True, dry_run=True))
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(report.new, report.unread, int(peak) // 1024)
"""


@pytest.mark.deep("writes 200 MB for each source")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc for the peak of memory")
@pytest.mark.parametrize("source", [*SAMPLES, "litellm.csv"])
def test_a_line_of_200_mb_costs_one_line_and_little_memory(source: str, tmp_path: Path) -> None:
    source, _, form = source.partition(".")
    good = SAMPLES[source](tmp_path / "there")
    huge = good.with_name(f"huge.{form or good.suffix[1:]}")
    if source in LINES:
        head = "request_id,startTime,model\n" if form else ""
        last = "r9,2026-03-01T09:00:00Z,gpt-5\n" if form else good.read_text().splitlines()[-1] + "\n"
        with huge.open("w") as file:
            file.write(f'{head}{{"usage":"')
            file.writelines("Hidden " * 150_000 for _ in range(200))
            file.write(f'"}}\n{last}')
    else:
        huge.write_bytes(good.read_bytes())
        columns = "message (id, data)" if source == "opencode" else "responses (id, response)"
        with sqlite3.connect(huge) as made:
            made.execute(f"INSERT INTO {columns} VALUES ('x', zeroblob(200000000))")
        made.close()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, source, str(huge), str(good)], capture_output=True, text=True, check=True
    )
    new, unread, resident = map(int, done.stdout.split())
    assert (new in (1, 2), unread) == (True, 1)  # Some sources use the name of the file for the session.
    assert resident < 150

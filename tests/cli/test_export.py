"""`callboard export`, on files that a real engine left."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from .running import PRICES, call


def test_export_writes_every_attempt_and_needs_no_rich(traced: Path, tmp_path: Path) -> None:
    """CSV to a file, JSON lines to stdout: the same rows."""
    target = tmp_path / "calls.csv"
    done = call("export", "--format", "csv", str(target), home=traced, without="rich", exits=0)
    assert "3 rows written to" in done.stderr
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["completed", "completed", "failed"]
    assert [row["cost_usd"] for row in rows] == ["0.000003000", "0.000003600", ""]
    done = call("export", "--format", "jsonl", "-", home=traced)
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["cost_nano_usd"] for row in objects] == [3000, 3600, None]
    assert [row["call_id"] for row in objects] == [int(row["call_id"]) for row in rows]
    assert done.stderr == ""


def test_export_takes_filters_and_price_versions(traced: Path) -> None:
    """An unknown version is refused, because the current costs would be the wrong answer."""
    done = call("export", "--format", "jsonl", "--status", "failed", "-", home=traced)
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["failed"]
    refused = call("export", "--format", "jsonl", "--under", "ffffffffffff", "-", home=traced)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "ffffffffffff" in refused.stderr
    call("reprice", "--prices", str(PRICES), home=traced, exits=0)
    done = call("export", "--format", "jsonl", "--model", "local-chat:m", "-", home=traced)
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (row["cost_nano_usd"], row["at_call_time_nano_usd"]) == (2400, 3000)
    under = ("--under", row["cost_pricing_version"], "--model", "local-chat:m")
    assert call("export", "--format", "jsonl", *under, "-", home=traced).stdout == done.stdout


@pytest.mark.parametrize(("path", "code"), [("{home}/no/such/folder/x.csv", 1), ("{home}/trace.db", 2)])
def test_export_to_where_it_cannot_write_says_so(traced: Path, path: str, code: int) -> None:
    """In one line, and the trace file stays what it is."""
    before = (traced / "trace.db").read_bytes()
    done = call("export", "--format", "csv", path.format(home=traced), home=traced)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert (traced / "trace.db").read_bytes() == before

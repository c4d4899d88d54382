"""`callboard prune` and `callboard backup` on files that a real engine left, and what `doctor` says of them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import anyio
import pytest

from callboard.engine.cli.upkeep import age, size
from tests.tracestore.trace_making import make_file_before

from .running import call


def attempts(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as file:
        return int(file.execute("SELECT count(*) FROM calls").fetchone()[0])


def made_older(home: Path, days: int) -> Path:
    """The trace file, as if its calls had been so many days earlier."""
    path = home / "trace.db"
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        ((sql,),) = file.execute("SELECT sql FROM sqlite_master WHERE name = 'events_are_append_only'").fetchall()
        file.execute("DROP TRIGGER events_are_append_only")
        earlier = f"ts_us - {days * 86_400_000_000}"
        file.execute(f"UPDATE events SET ts_us = {earlier}")
        file.execute(f"UPDATE calls SET ts_us = {earlier}, finished_us = finished_us - {days * 86_400_000_000}")
        file.execute(sql)
    return path


def test_prune_says_first_what_would_go_and_then_deletes_it(traced: Path) -> None:
    """The same counts both times; the last call stays."""
    path = made_older(traced, 100)
    before = attempts(path)
    dry = call("prune", "--older-than", "90d", "--dry-run", home=traced, exits=0)
    assert attempts(path) == before
    done = call("prune", "--older-than", "90d", home=traced, exits=0)
    told = dry.stdout.split(", of ")[0].removeprefix("Would delete ")
    assert f"{before - 1} attempts" in told
    assert f"Deleted {told}." in done.stdout
    assert attempts(path) == 1
    assert call("prune", "--older-than", "200d", "--vacuum", home=traced).stdout.startswith("Deleted 0 attempts")


def test_prune_wants_to_be_told_what_is_to_go(traced: Path, tmp_path: Path) -> None:
    """Neither nothing nor a file that isn't there is pruned, and none is made."""
    done = call("prune", home=traced)
    assert (done.returncode, "--older-than" in done.stderr) == (2, True)
    missing = tmp_path / "none.db"
    for option in ((), ("--dry-run",)):
        done = call("prune", "--older-than", "1d", "--db", str(missing), *option, home=traced, exits=1)
        assert "there is no trace file" in done.stderr
    assert not missing.exists()


def test_backup_makes_a_file_that_the_other_commands_read(traced: Path, tmp_path: Path) -> None:
    """And refuses to write over it."""
    target = tmp_path / "copy.db"
    call("backup", str(target), home=traced, exits=0)
    listed = [call("traces", "--json", "--db", str(path), home=traced) for path in (target, traced / "trace.db")]
    assert listed[0].stdout == listed[1].stdout != ""
    again = call("backup", str(target), home=traced)
    assert (again.returncode, "overwrites nothing" in again.stderr) == (1, True)


def test_upgrade_brings_an_older_file_up_to_date(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which commands that only look refuse, and say how; one of today stays as it is, and nothing is made."""
    anyio.run(make_file_before, "call rows", home / "trace.db", monkeypatch)
    refused = call("traces", home=home, exits=1)
    assert "`callboard upgrade`" in refused.stderr
    assert "`callboard upgrade`" in call("doctor", "--offline", home=home, exits=1).stdout
    assert call("upgrade", home=home, exits=0).stdout.endswith("trace.db is now up to date.\n")
    call("traces", home=home, exits=0)
    assert call("upgrade", home=home, exits=0).stdout.endswith("trace.db was already up to date.\n")
    missing = call("upgrade", "--db", "none.db", home=home, exits=1)
    assert "there is no trace file" in missing.stderr
    on_server = call("upgrade", "--store", "postgresql://nobody@127.0.0.1:9/none", home=home, exits=2)
    assert "its owner" in on_server.stderr


def test_doctor_tells_lost_runs_leftovers_and_free_pages(traced: Path) -> None:
    """They are no faults: what deals with them stands beside them."""
    path = traced / "trace.db"
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE runs SET ended_us = NULL, ending = NULL")
        file.execute("UPDATE calls SET status = 'started' WHERE id = 1")
    path.with_name("trace.db.spill-run_dead.jsonl").write_bytes(b"{}\n")
    done = call("doctor", "--offline", "--json", home=traced)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert all(checks[name]["ok"] for name in ("store:runs", "store:spill", "store:space"))
    assert "1 lost with 1 calls without an end" in checks["store:runs"]["detail"]
    assert "trace.db.spill-run_dead.jsonl (3 bytes)" in checks["store:spill"]["detail"]
    assert "free pages" in checks["store:space"]["detail"]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [(age, "90d", 90 * 86_400), (age, "12h", 43_200), (size, "500M", 500_000_000), (size, "2gb", 2_000_000_000)],
)
def test_ages_and_sizes_are_read(read: object, text: str, value: int) -> None:
    """With their units."""
    assert callable(read)
    assert read(text) == value

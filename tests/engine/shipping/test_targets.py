"""A shared store that a file is not shipped to any more: nothing of the file waits for it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.engine.cli.command_line import main
from callboard.tracestore import TraceShipper, TraceStore
from tests.support.postgres_server import why_not
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


async def write(trace: Path, number: int) -> None:
    make = Maker(f"run_{number}")
    async with TraceStore(trace) as store:
        for call in range(3):
            request = f"req_{number}_{call}"
            await store.write([make.started(request), make.completed(request)])
        await store.close_lost_runs()


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("dry", [True, False])
def test_prune_says_what_it_keeps_for_a_store_and_how_to_give_it_up(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], dry: bool
) -> None:
    trace = tmp_path / "trace.db"
    anyio.run(write, trace, 1)
    assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--once"]) == 0
    anyio.run(write, trace, 2)
    told(capsys)
    prune = ["prune", "--db", str(trace), "--max-size", "1", *(["--dry-run"] if dry else [])]
    assert main(prune) == 0
    said = told(capsys)
    assert "Kept 6 events that postgresql://" in said
    assert "callboard ship --forget" in said
    assert "@" not in said
    assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--forget"]) == 0
    assert "no longer copied" in told(capsys)
    assert main(prune) == 0
    assert "Kept" not in told(capsys)
    assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--forget"]) == 1


def test_a_store_that_is_shipped_to_now_is_not_forgotten(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.db"

    async def shipping() -> TraceShipper:
        await write(trace, 1)
        shipper = TraceShipper(trace, postgres_dsn)
        await shipper._step()
        return shipper

    shipper = anyio.run(shipping)
    try:
        assert main(["ship", "--db", str(trace), "--store", postgres_dsn, "--forget"]) != 0
        assert "Stop it first" in " ".join(capsys.readouterr().err.split())
    finally:
        shipper._turn.give_up()

"""`callboard ship`: a trace file is copied to a server."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.engine.cli.command_line import main
from tests.tracestore.trace_making import Maker
from callboard.tracestore import PostgresStore, TraceStore


def test_ship_once(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a dead process left without an end has one there; the password is shown nowhere."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("CALLBOARD_STORE", postgres_dsn)
    path, make = tmp_path / "trace.db", Maker("run_a")

    async def write() -> None:
        async with TraceStore(path) as store:
            await store.write([make.started("req_1"), make.completed("req_1"), make.started("req_2")])

    async def calls() -> list[tuple[str, str]]:
        async with PostgresStore.open_readonly(postgres_dsn) as store:
            return sorted((call.request_id, call.status) for call in await store.calls())

    anyio.run(write)
    assert main(["ship", "--once"]) == 0
    said = capsys.readouterr().out
    assert "4 events sent to postgresql://" in said.replace("\n", " ")
    assert postgres_dsn not in said
    assert anyio.run(calls) == [("req_1", "completed"), ("req_2", "failed")]
    assert main(["ship", "--once"]) == 0
    assert "0 events" in capsys.readouterr().out


def test_ship_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.delenv("CALLBOARD_STORE", raising=False)
    assert main(["ship", "--once"]) == 2
    assert "--store" in capsys.readouterr().err
    assert main(["ship", "--once", "--store", "postgresql://u@127.0.0.1:1/d"]) == 1
    assert "there is no trace file" in capsys.readouterr().err

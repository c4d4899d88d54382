"""Engines with a real server. The tests run in real time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nats_server import NatsServer, own_nats_server
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with own_nats_server() as server:
        yield server

"""The fixtures of the trace store's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.virtual_time import runs_on
from callboard.tracestore import TraceStore

from .trace_making import Maker

anyio_backend = runs_on("asyncio")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TraceStore]:
    async with TraceStore(tmp_path / "trace.db") as opened:
        yield opened


@pytest.fixture
def make() -> Maker:
    return Maker()

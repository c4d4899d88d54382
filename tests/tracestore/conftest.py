"""The fixtures of the trace store's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from trace_making import Maker

from tracestore import TraceStore


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TraceStore]:
    async with TraceStore(tmp_path / "trace.db") as opened:
        yield opened


@pytest.fixture
def make() -> Maker:
    return Maker()

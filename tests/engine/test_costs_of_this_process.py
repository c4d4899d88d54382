"""What calls cost that have just ended in this process, asked without their engine."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest

from callboard.engine import Engine, costs, costs_sync, generate_sync
from tests.support.engines import registry
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")


def test_a_call_that_has_just_ended_is_counted(tmp_path: Path) -> None:
    """Its engine lives in this process, on the loop of the sync functions, and has not committed it yet."""
    path = tmp_path / "own.db"
    with Engine(models=registry(*[Say("Hello")] * 3), store=path) as engine:
        for number in range(1, 4):
            generate_sync("s:m", "Hi", engine=engine)
            (row,) = costs_sync(trace=path)
            assert row.calls == number


@pytest.mark.anyio
async def test_a_call_of_this_loop_is_counted_too(tmp_path: Path) -> None:
    """Asked on the engine's own loop, and from a thread beside it."""
    path = tmp_path / "own.db"
    async with Engine(models=registry(*[Say("Hello")] * 2), store=path) as living:
        await living.generate("s:m", "Hi")
        assert [row.calls for row in await costs(trace=path)] == [1]
        await living.generate("s:m", "Hi")
        assert [row.calls for row in await anyio.to_thread.run_sync(lambda: costs_sync(trace=path))] == [2]

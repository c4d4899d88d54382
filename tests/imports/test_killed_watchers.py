"""Two programs that watch the same files for the same trace, and are killed while they write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from callboard.engine.imports.importer import import_calls
from callboard.tracestore import PriceTable
from tests.support.session_files import Claude, usage, write
from tests.tracestore.contract.conftest import Place

pytestmark = pytest.mark.anyio
ROUNDS = 3
CALLS = 40


def watcher(place: Place, folder: Path, home: Path) -> subprocess.Popen[str]:
    """Start a program that watches a folder. The program prints a line for each change."""
    trace = ["--store", place.dsn] if place.dsn is not None else ["--db", str(place.folder / "trace.db")]
    return subprocess.Popen(
        [sys.executable, "-m", "callboard", "import", "claude-code", str(folder), "--watch", *trace],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CALLBOARD_HOME": str(home)},
    )


@pytest.mark.deep("starts six programs")
async def test_killed_watchers_store_each_call_once(place: Place, tmp_path: Path) -> None:
    """Each program is killed after its next line of output, or right after the file grows."""
    chance, session = random.Random(7), Claude()
    path = write(session.file(tmp_path / "projects"), [session.prompt()])
    number = 0
    for _ in range(ROUNDS):
        programs = [watcher(place, tmp_path / "projects", tmp_path / "home") for _ in range(2)]
        for program in programs:
            assert program.stdout is not None
            await anyio.to_thread.run_sync(program.stdout.readline)
        for program in programs:
            for _ in range(CALLS // 2):
                number += 1
                write(path, [session.reply(number, usage(3, out)) for out in (1, 50)], append=True)
            if chance.random() < 0.7:
                assert program.stdout is not None
                await anyio.to_thread.run_sync(program.stdout.readline)
            program.send_signal(signal.SIGKILL)
            program.communicate()
    async with place.store() as store:
        await import_calls(store, "claude-code", tmp_path / "projects", prices=PriceTable.default())
        rows = await store.calls(limit=None)
        assert sorted(str(row.response_id) for row in rows) == sorted(f"msg_{each + 1}" for each in range(number))
        assert {row.usage.output_tokens for row in rows if row.usage} == {50}
        (sums,) = await store.costs()
        assert (sums.calls, sums.output_tokens) == (number, 50 * number)
        again = await import_calls(store, "claude-code", tmp_path / "projects", prices=PriceTable.default())
        assert not again.changed

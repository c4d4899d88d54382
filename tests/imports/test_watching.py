"""Files of every source that change while an importer watches them."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from callboard.engine.imports.importer import Importer
from callboard.tracestore import PriceTable, TraceStore

from .samples import LINES, SAMPLES, more

pytestmark = pytest.mark.anyio
PRICES = PriceTable.default()


def touched(path: Path, count: int) -> None:
    """Give a change a different time, because the clock of the file system can be coarse."""
    os.utime(path, ns=(count * 10**9, count * 10**9))


@pytest.mark.parametrize("source", SAMPLES)
async def test_every_change_of_a_file_brings_its_calls_once(source: str, tmp_path: Path) -> None:
    """The folder is created after the start. A file grows, is replaced, and is created again."""
    there = tmp_path / "there"
    async with TraceStore(tmp_path / "trace.db") as store:
        importer = Importer(store, source, there, prices=PRICES)
        report = await importer.run()
        assert [fault.why for fault in report.faults] == ["no such file or folder"]
        path = SAMPLES[source](there)
        seen = [(await importer.run()).new]
        for count in range(1, 3):
            more(source, path, count)
            touched(path, count)
            seen.append((await importer.run()).new)
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        more(source, copy, 3)
        touched(copy, 3)
        copy.replace(path)  # the same name with another inode
        seen.append((await importer.run()).new)
        path.unlink()
        seen.append((await importer.run()).new)
        SAMPLES[source](there)  # shorter than before
        more(source, path, 4)
        touched(path, 4)
        report = await importer.run()
        assert [*seen, report.new] == [1, 1, 1, 1, 0, 1]
        assert not report.unread
        assert len(await store.calls(limit=None)) == 5


@pytest.mark.parametrize("source", LINES)
async def test_a_file_that_is_cut_off_and_written_on_brings_no_half_call(source: str, tmp_path: Path) -> None:
    path = SAMPLES[source](tmp_path / "there")
    more(source, path, 1)
    whole = path.read_bytes()
    async with TraceStore(tmp_path / "trace.db") as store:
        importer = Importer(store, source, tmp_path / "there", prices=PRICES)
        await importer.run()
        for count, size in enumerate((len(whole) - 40, len(whole) // 2, 0, len(whole) - 40, len(whole))):
            path.write_bytes(whole[:size])
            touched(path, count)
            report = await importer.run()
            assert report.new == report.corrected == 0
        more(source, path, 2)
        assert (await importer.run()).new == 1


async def test_a_writer_at_the_same_time_loses_nothing(tmp_path: Path) -> None:
    """A thread writes single pieces of lines while the importer watches."""
    source = "claude-code"
    path = SAMPLES[source](tmp_path / "there")
    for count in range(1, 40):
        more(source, path, count)
    whole = path.read_bytes()
    path.write_bytes(b"")

    def written() -> None:
        with path.open("ab", buffering=0) as file:
            for place in range(0, len(whole), 700):
                file.write(whole[place : place + 700])

    async with TraceStore(tmp_path / "trace.db") as store:
        importer = Importer(store, source, tmp_path / "there", prices=PRICES)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(importer.watch, 0.001)
            await anyio.to_thread.run_sync(written)
            tasks.cancel_scope.cancel()
        await importer.run()
        assert len(await store.calls(limit=None)) == 40

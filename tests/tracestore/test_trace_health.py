"""Whether a trace file is well: what SQLite finds in it, and what the file system says around it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import anyio
import pytest

from callboard import StoreError, TraceStore
from callboard.tracestore.health import file_facts
from callboard.tracestore.sqlite import database

from ..support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace file that nobody has open."""
    path = tmp_path / "home" / "trace.db"

    async def make() -> None:
        async with TraceStore(path):
            pass

    anyio.run(make)
    return path


def fill(path: Path, rows: int) -> None:
    """Make the file so large that reading it takes a while."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ballast (text)")
        connection.executemany("INSERT INTO ballast VALUES (?)", [("x" * 500,)] * rows)
    connection.close()


def overwrite(path: Path, place: int, size: int) -> None:
    """Spoil some bytes, counted from the end of the file."""
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_END)
        file.write(b"\xff" * size)


async def test_a_good_file_has_nothing_wrong_with_it(trace: Path) -> None:
    """Over a connection that only reads, as over the writer's own."""
    async with TraceStore(trace) as writer, TraceStore.open_readonly(trace) as reader:
        assert await writer.check() == []
        assert await reader.check() == []
        assert await reader.journal_mode() == "wal"


@pytest.mark.parametrize("size", [8, 64, 4096])
async def test_damage_inside_the_file_is_found_and_told_in_sqlites_words(trace: Path, size: int) -> None:
    """A page that was overwritten does not keep the file from opening."""
    fill(trace, 2000)
    overwrite(trace, -3 * 4096, size)
    async with TraceStore.open_readonly(trace) as store:
        assert await store.check()


async def test_a_check_that_takes_too_long_stops_and_leaves_the_connection_usable(trace: Path) -> None:
    """A file of many gigabytes holds nobody up for ever."""
    fill(trace, 20_000)
    async with TraceStore.open_readonly(trace) as store:
        with pytest.raises(TimeoutError, match="not checked within"):
            await store.check(seconds=-1.0)
        assert await store.check() == []
        assert await store.calls() == []


async def test_a_store_that_is_not_open_can_not_be_checked(trace: Path) -> None:
    """The error says what to do."""
    with pytest.raises(StoreError, match="call open"):
        await TraceStore(trace).check()


def test_the_facts_of_a_file_are_its_mode_its_place_and_its_disk(trace: Path) -> None:
    """A file that we made is its owner's alone."""
    facts = file_facts(trace)
    assert facts.exists
    assert facts.size == trace.stat().st_size > 0
    assert facts.open_to_others == ()
    assert facts.writable
    assert facts.free_bytes > 0
    assert facts.sqlite_version == sqlite3.sqlite_version


def test_a_file_that_others_may_read_is_found(trace: Path) -> None:
    """It may hold what people said to a model."""
    trace.chmod(0o644)
    assert file_facts(trace).open_to_others == (trace,)


def test_looking_at_a_file_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    """The folder that counts is the nearest one that exists."""
    facts = file_facts(tmp_path / "a" / "b" / "trace.db")
    assert not facts.exists
    assert facts.writable
    assert facts.folder == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "locked"),
    [((3, 40, 1), True), ((3, 44, 6), False), ((3, 50, 6), True), ((3, 50, 7), False), ((3, 51, 3), False)],
)
def test_the_lock_file_is_explained_by_the_version_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], locked: bool
) -> None:
    """Versions that can lose rows to two writers need it, mended ones don't."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    monkeypatch.setattr(sqlite3, "sqlite_version", ".".join(map(str, version)))
    facts = file_facts(tmp_path / "trace.db")
    assert facts.file_lock is locked is database.needs_file_lock()
    assert ("trace.db.lock" in facts.locking) is locked
    assert facts.sqlite_version in facts.locking


async def test_two_checks_at_once_take_turns(trace: Path) -> None:
    """A connection has one progress handler; neither check switches off the other's."""
    async with TraceStore.open_readonly(trace) as store:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(store.check)

"""A backup: whole, private, of one moment, made while others write, and never over anything."""

from __future__ import annotations

import stat
from pathlib import Path

import anyio
import pytest

from callboard import StoreError, TraceStore
from callboard.tracestore.sqlite import upkeep as backup

from .test_trace_file import integrity
from .trace_making import Maker

pytestmark = pytest.mark.anyio


async def test_a_backup_is_a_trace_file_of_its_moment(
    store: TraceStore, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written while it is copied is not in it, and doesn't make it begin again; it opens as a store."""
    monkeypatch.setattr(backup, "_PAGES_AT_ONCE", 5)
    await store.write([make.started(f"req_{n}") for n in range(400)])
    target = tmp_path / "copy.db"
    seen: list[tuple[int, int]] = []
    more = anyio.Event()

    def told(done: int, pages: int) -> None:
        seen.append((done, pages))
        more.set()

    async def write_on() -> None:
        await more.wait()
        while not target.exists():
            await store.write([make.started("late")])

    async with anyio.create_task_group() as group:
        group.start_soon(write_on)
        await store.backup(target, progress=told)
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert len(await store.events(limit=None)) > 400
    async with TraceStore(target) as copy:
        assert len(await copy.events(limit=None)) == 400
        assert await integrity(copy) == "ok"
        assert await copy.close_lost_runs() == ["run_test"]
        assert {row.status for row in await copy.calls()} == {"failed"}


async def test_nothing_is_overwritten(store: TraceStore, tmp_path: Path) -> None:
    """A file at the path stays as it is."""
    (tmp_path / "there.db").write_text("mine")
    with pytest.raises(StoreError, match=r"there\.db"):
        await store.backup(tmp_path / "there.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    with pytest.raises(StoreError, match="already"):
        await store.backup(store.path)


async def test_a_failed_or_cancelled_backup_leaves_nothing(
    store: TraceStore, make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a file nor a part of one; the store goes on."""
    monkeypatch.setattr(backup, "_PAGES_AT_ONCE", 5)
    await store.write([make.started(f"req_{n}") for n in range(200)])
    before = sorted(path.name for path in store.path.parent.glob("*"))

    def stop(done: int, pages: int) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError):
        await store.backup(tmp_path / "copy.db", progress=stop)
    with anyio.CancelScope() as scope:
        await store.backup(tmp_path / "copy.db", progress=lambda done, pages: scope.cancel())
    assert scope.cancelled_caught
    with pytest.raises(StoreError, match="nowhere"):
        await store.backup(tmp_path / "nowhere" / "copy.db")
    assert sorted(path.name for path in store.path.parent.glob("*")) == before
    await store.backup(tmp_path / "copy.db")


async def test_a_reader_can_make_a_backup(store: TraceStore, make: Maker, tmp_path: Path) -> None:
    """Another process's file is copied without being opened for writing."""
    await store.write([make.started()])
    async with TraceStore.open_readonly(store.path) as reader:
        await reader.backup(tmp_path / "copy.db")
    async with TraceStore.open_readonly(tmp_path / "copy.db") as copy:
        assert len(await copy.calls()) == 1

"""A trace that was closed can be read where nothing can be written, and says so when it can't be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard import PriceTable, StoreError, StoreUnavailable, TraceStore
from callboard.engine.watching.health import check_store
from tests.support.disks import Medium, medium
from tests.support.engines import keeping
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")


@pytest.fixture
def media(tmp_path: Path) -> Iterator[Medium]:
    with medium(tmp_path / "media") as made:
        yield made


async def closed_trace(folder: Path) -> Path:
    """A trace file of an engine that was closed."""
    path = folder / "trace.db"
    async with keeping(path, Say("Hello")) as engine:
        await engine.session("s:m", session_id="ses_1").send("Hi")
    return path


async def test_a_closed_trace_is_read_on_read_only_media(media: Medium, tmp_path: Path) -> None:
    """Calls, events, a saved session, a repricing that is only tried, and a backup; nothing is made beside it."""
    path = await closed_trace(media.folder)
    media.make_writable(False)
    before = sorted(path.parent.iterdir())
    async with TraceStore.open_readonly(path) as store:
        assert [row.status for row in await store.calls()] == ["completed"]
        assert len(await store.events()) > 3
        assert (await store.saved_session("ses_1")) is not None
        assert (await store.reprice(PriceTable([]), dry_run=True)).calls == 1
        assert await store.check() == []
        assert await store.journal_mode() == "wal"
        await store.backup(tmp_path / "copy.db")
        with pytest.raises(StoreError, match="reading only"):
            await store.undo_reprice()
    assert sorted(path.parent.iterdir()) == before
    async with TraceStore.open_readonly(tmp_path / "copy.db") as copy:
        assert len(await copy.calls()) == 1


async def test_its_checks_find_nothing_but_that_it_cannot_be_written(media: Medium) -> None:
    """The file is whole, and its write-ahead log is not missed."""
    path = await closed_trace(media.folder)
    media.make_writable(False)
    found = await check_store(TraceStore(path))
    assert [check.name for check in found if not check.ok] == ["store:writable"]


async def test_a_trace_that_was_not_closed_is_refused_and_says_why(media: Medium, tmp_path: Path) -> None:
    """What its write-ahead log holds would be missing; a backup is refused in the same words."""
    source = tmp_path / "trace.db"
    async with TraceStore(source) as writer:
        await writer.write([Maker("run_1").started()])
        for ending in ("", "-wal"):
            shutil.copy(f"{source}{ending}", media.folder / f"trace.db{ending}")
    media.make_writable(False)
    path = media.folder / "trace.db"
    with pytest.raises(StoreUnavailable, match=r"not closed by its writer.*copy the file and trace\.db-wal"):
        await TraceStore.open_readonly(path).open()
    with pytest.raises(StoreUnavailable, match="not closed by its writer"):
        await TraceStore.open_readonly(path).backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_reading_ends_when_somebody_begins_to_write(media: Medium) -> None:
    """Read as a file that never changes, it could only be read wrongly; opened anew, it is read rightly."""
    path = await closed_trace(media.folder)
    media.make_writable(False)
    async with TraceStore.open_readonly(path) as reader:
        media.make_writable(True)
        async with TraceStore(path) as writer:
            await writer.write([Maker("run_2").started()])
            with pytest.raises(StoreUnavailable, match="open it anew"):
                await reader.calls()
            async with TraceStore.open_readonly(path) as anew:
                assert len(await anew.calls()) == 2


async def test_where_a_file_can_be_made_beside_it_a_reader_sees_what_is_written(tmp_path: Path) -> None:
    """A reader of a file at rest goes on reading when another process writes to it."""
    path = await closed_trace(tmp_path)
    async with TraceStore.open_readonly(path) as reader, TraceStore(path) as writer:
        await writer.write([Maker("run_2").started()])
        assert len(await reader.calls()) == 2

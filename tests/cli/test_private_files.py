"""Every file that a command or the library writes content to is for its owner alone, and never behind a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from callboard.adapters.cassettes.cassette import FORMAT, Cassette, RecordingTransport, save_cassette
from callboard.adapters.images import GeneratedImage
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from tests.support.media_server import media_server
from callboard.tracestore import SavedReplies, TraceStore
from callboard.tracestore.export import export_calls

from .faulty_day import make_faulty_day
from .running import PRICES, call
from .test_every_command import MODELS_YAML

Writes = Callable[[Path, Path], object]
"""Writes to the second path, with a home folder that has a trace file and models."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    make_faulty_day(TraceStore(home / "trace.db"), PRICES)
    with media_server() as server:
        (home / "models.yaml").write_text(MODELS_YAML.format(url=server.url, hostile="x"))
        yield home


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def command(*words: str) -> Writes:
    """A command of these words, with the path in the place of FILE. Raises OSError if it failed."""

    def run(home: Path, file: Path) -> None:
        done = call(*(str(file) if word == "FILE" else word for word in words), home=home)
        if done.returncode:
            raise OSError(done.stderr)

    return run


class NoTransport:
    async def send(self, request: HttpRequest) -> HttpReply:
        raise AssertionError("nothing is asked")

    async def aclose(self) -> None:
        pass


def recorded(home: Path, file: Path) -> None:
    anyio.run(RecordingTransport(NoTransport(), file).aclose)


def exported(home: Path, file: Path) -> None:
    async def export() -> None:
        async with TraceStore.open_readonly(home / "trace.db") as store:
            await export_calls(store, file, "csv")

    anyio.run(export)


def replies(home: Path, file: Path) -> None:
    async def keep() -> None:
        kept = SavedReplies(file)
        await kept.put("key", b"reply", 0, 1)
        await kept.aclose()

    anyio.run(keep)


SURFACES: dict[str, Writes] = {
    "a session": command("sessions", "ses_captured", "--export", "FILE"),
    "a report": command("reprice", "--prices", str(PRICES), "--dry-run", "--html", "FILE"),
    "calls as CSV": command("export", "--format", "csv", "FILE"),
    "calls as JSON": command("export", "--format", "jsonl", "FILE"),
    "calls as Parquet": command("export", "--format", "parquet", "FILE"),
    "a backup": command("backup", "FILE"),
    "an image": command("image", "--model", "draw", "-o", "FILE", "a boat"),
    "a video": command("video", "--model", "film", "--every", "0.01", "-o", "FILE", "a boat"),
    "a cassette": lambda _, file: save_cassette(file, Cassette(FORMAT, "", ())),
    "a recording": recorded,
    "an export": exported,
    "an image's bytes": lambda _, file: GeneratedImage(data=b"x").save(file),
    "kept replies": replies,
}


@pytest.mark.parametrize("name", SURFACES)
def test_its_owner_alone_can_read_it(name: str, faulty: Path, tmp_path: Path) -> None:
    """Under the usual umask; and nothing is left beside it."""
    if name == "calls as Parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / "written.png"
    SURFACES[name](faulty, file)
    beside = {f"{file.name}{ending}" for ending in ("", ".lock", "-wal", "-shm")}
    assert {path.name for path in tmp_path.iterdir()} - {"home"} <= beside
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", SURFACES)
def test_nothing_is_written_through_a_link(name: str, faulty: Path, tmp_path: Path) -> None:
    """It is refused, and the file behind it stays as it is."""
    if name == "calls as Parquet":
        pytest.importorskip("pyarrow")
    behind, file = tmp_path / "behind", tmp_path / "written.png"
    behind.write_text("another's")
    file.symlink_to(behind)
    with pytest.raises(Exception, match=r"symbolic link|is there already"):
        SURFACES[name](faulty, file)
    assert behind.read_text() == "another's"

"""Every command that only reads works on a closed trace on read-only media, as it does elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disks import medium

from .running import PRICES, call, make_trace

READING = (
    ("traces",),
    ("traces", "--json"),
    ("sessions",),
    ("sessions", "ses_under_test"),
    ("cost",),
    ("cost", "--csv"),
    ("stats",),
    ("errors",),
    ("sql", "select count(*) from calls"),
    ("reprice", "--prices", str(PRICES), "--dry-run"),
    ("reprice", "--history"),
    ("replay",),
    ("replay", "--json"),
    ("prune", "--older-than", "1d", "--dry-run"),
    ("export", "--format", "csv", "-"),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The same trace twice: where it can be written, and on read-only media."""
    folder = tmp_path_factory.mktemp("both")
    writable = folder / "home" / "trace.db"
    make_trace(writable)
    with medium(folder / "media") as media:
        readable = media.folder / "trace.db"
        shutil.copy(writable, readable)
        media.make_writable(False)
        yield writable, readable


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_it_says_the_same_on_read_only_media(words: tuple[str, ...], both: tuple[Path, Path], home: Path) -> None:
    """Word for word, but for where the file is."""
    said = [call(*words, "--db", str(path), home=home) for path in both]
    assert said[1].returncode == said[0].returncode, said[1].stderr
    shown = [(each.stdout + each.stderr).replace(str(path), "") for each, path in zip(said, both, strict=True)]
    assert shown[0] == shown[1]


def test_it_is_copied_from_read_only_media(both: tuple[Path, Path], home: Path, tmp_path: Path) -> None:
    """By `backup`, into a file that can be written again."""
    call("backup", str(tmp_path / "copy.db"), "--db", str(both[1]), home=home, exits=0)
    assert "3 calls" in call("traces", "--db", str(tmp_path / "copy.db"), home=home).stdout

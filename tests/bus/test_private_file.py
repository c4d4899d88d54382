"""Only the owner can read a private file. The file is complete or absent, and links are never followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from callboard.bus.files import UnfinishedFile, private_file, write_private


@pytest.fixture(autouse=True)
def generous_umask() -> object:
    """Set the umask of most machines: new files can be read by all users."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_private_from_the_start(tmp_path: Path) -> None:
    """The file is private while it is written, and when it replaces a file that all users could read."""
    place = tmp_path / "said.json"
    place.write_text("old")
    place.chmod(0o644)
    with private_file(place) as file:
        file.write(b"new")
        (unfinished,) = tmp_path.glob(".said.json.*.part")
        assert mode(unfinished) == 0o600
        assert place.read_text() == "old"
    assert place.read_bytes() == b"new"
    assert mode(place) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["said.json"]


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    place = tmp_path / "said.json"
    place.write_text("old")
    with pytest.raises(KeyError), private_file(place) as file:
        file.write(b"half")
        raise KeyError
    assert place.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_its_temporary_name_can_not_be_guessed(tmp_path: Path) -> None:
    first, second = UnfinishedFile(tmp_path / "a"), UnfinishedFile(tmp_path / "a")
    assert first.path != second.path
    for each in (first, second):
        each.drop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_its_place_is_refused(tmp_path: Path, there: bool) -> None:
    behind, place = tmp_path / "behind", tmp_path / "said.json"
    if there:
        behind.write_text("another's")
    place.symlink_to(behind)
    with pytest.raises(OSError, match="symbolic link"):
        write_private(place, b"said")
    assert place.is_symlink()
    assert (behind.read_text() if there else behind.exists()) == ("another's" if there else False)


def test_a_link_that_appears_meanwhile_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "said.json"
    with pytest.raises(OSError, match="symbolic link"), private_file(place) as file:
        file.write(b"said")
        place.symlink_to(tmp_path / "behind")
    assert [path.name for path in tmp_path.iterdir()] == ["said.json"]


def test_a_long_name_is_no_problem(tmp_path: Path) -> None:
    """A name may have 255 bytes. The temporary name also respects this limit."""
    write_private(tmp_path / ("x" * 255), b"said")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """A pipe stores no data and can't be replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_private(pipe, b"said")
        assert os.read(reader, 9) == b"said"
    finally:
        os.close(reader)
    write_private("/dev/null", b"said")

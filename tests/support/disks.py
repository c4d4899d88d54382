"""Folders that can be made read-only for everybody, root included."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def attempt_mount(*arguments: str) -> bool:
    """Whether `mount` did it."""
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Medium:
    """A folder of its own. For root, whom no mode keeps from anything, a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_writable(self, writable: bool) -> None:
        """From now on files can, or can't, be made and written in it."""
        if os.geteuid() == 0:
            assert attempt_mount("-o", f"remount,{'rw' if writable else 'ro'}", str(self.folder))
        else:
            self.folder.chmod(0o700 if writable else 0o500)


@contextlib.contextmanager
def medium(folder: Path) -> Iterator[Medium]:
    """Made, and given back; the test is skipped where root may mount nothing."""
    folder.mkdir()
    if os.geteuid() != 0:
        yield Medium(folder)
        folder.chmod(0o700)
        return
    if not attempt_mount("-t", "tmpfs", "-o", "size=2g,mode=700", "tmpfs", str(folder)):
        pytest.skip("no file system can be mounted here")
    try:
        yield Medium(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

"""Folders that can be made read-only for everybody, root included."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def attempt_mount(*arguments: str) -> bool:
    """Run `mount`. Returns whether it succeeded."""
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Medium:
    """A folder of its own. For root, which ignores file modes, it is a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_writable(self, writable: bool) -> None:
        """Make the folder writable or read-only."""
        if os.geteuid() == 0:
            assert attempt_mount("-o", f"remount,{'rw' if writable else 'ro'}", str(self.folder))
        else:
            self.folder.chmod(0o700 if writable else 0o500)


@contextlib.contextmanager
def medium(folder: Path) -> Iterator[Medium]:
    """Create the folder and remove it afterwards. The test is skipped if root may not mount."""
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

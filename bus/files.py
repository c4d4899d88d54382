"""Private files: readable by their owner alone, whole or not there, and never behind a link.

A file is made beside its place under a name that nobody can guess, and takes the place in one step. A symbolic
link in the place is refused: it may have been laid there to have another file overwritten.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import get_data
from typing import BinaryIO

_SYSTEM_FOLDERS = (("/", "dev"), ("/", "proc"))
_LONGEST_PREFIX = 50  # characters of a temporary name; a file's name may have 255 bytes


class UnfinishedFile:
    """A private file in the making. It ends with `keep` or `drop`."""

    def __init__(self, path: str | Path) -> None:
        """Make a temporary file beside `path`."""
        self.target = Path(path)
        """The path at which the file will stand."""
        refuse_link(self.target)
        prefix = f".{self.target.name[:_LONGEST_PREFIX]}."
        import tempfile  # it loads random and more, which a program that writes nothing needs not

        handle, name = tempfile.mkstemp(dir=self.target.parent, prefix=prefix, suffix=".part")
        self.path = Path(name)
        """The path of the temporary file."""
        self.file: BinaryIO = os.fdopen(handle, "w+b")
        """The temporary file, open for reading and writing."""

    def keep(self) -> None:
        """Put the file in its place, instead of any file that was there."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            refuse_link(self.target)
            os.replace(self.path, self.target)
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Leave nothing of the file."""
        self.file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def private_file(path: str | Path) -> Iterator[BinaryIO]:
    """An open file that takes its place if the block ends in order.

    A device or a pipe, such as ``/dev/stdout``, is written to as it is.
    """
    if _is_stream(Path(path)):
        with open(path, "wb") as stream:
            yield stream
        return
    unfinished = UnfinishedFile(path)
    try:
        yield unfinished.file
    except BaseException:
        unfinished.drop()
        raise
    unfinished.keep()


def write_private(path: str | Path, data: bytes) -> None:
    """Write a private file, whole or not at all, in place of any file that was there."""
    with private_file(path) as file:
        file.write(data)


def _is_stream(path: Path) -> bool:
    if path.parts[:2] in _SYSTEM_FOLDERS:  # its links are the system's
        return True
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "is a symbolic link; give the path of the file itself", str(path))


def package_data(module: str, name: str) -> bytes:
    """Read a file that stands beside a module, or in a folder there.

    The module's loader reads it, so the package may stand in a zip file.
    """
    data = get_data(module, name)
    assert data is not None, f"the loader of {module} reads no files"
    return data

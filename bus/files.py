"""Private files. Only the owner can read them. Each file is replaced as a whole. A symbolic link is never
followed.

A file is made under a random name in the same folder, and replaces the target in one step. A symbolic link at the
target is refused, because it may have been put there to overwrite another file.
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
    """A private file that is being written. Finish it with `keep` or `drop`."""

    def __init__(self, path: str | Path) -> None:
        """Create a temporary file in the folder of `path`."""
        self.target = Path(path)
        refuse_link(self.target)
        prefix = f".{self.target.name[:_LONGEST_PREFIX]}."
        import tempfile  # lazy, because it imports many modules that most programs don't need

        handle, name = tempfile.mkstemp(dir=self.target.parent, prefix=prefix, suffix=".part")
        self.path = Path(name)
        self.file: BinaryIO = os.fdopen(handle, "w+b")
        """The temporary file, open for reading and writing."""

    def keep(self) -> None:
        """Move the file to its target, replacing any file there."""
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
        self.file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def private_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that replaces the target if the `with` block succeeds.

    A device or a pipe, such as ``/dev/stdout``, is written directly.
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
    """Write a private file, whole or not at all, replacing any file there."""
    with private_file(path) as file:
        file.write(data)


def _is_stream(path: Path) -> bool:
    if path.parts[:2] in _SYSTEM_FOLDERS:  # links in these folders belong to the operating system
        return True
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))


def refuse_link(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "is a symbolic link. Pass the path of the file itself", str(path))


def package_data(module: str, name: str) -> bytes:
    """Read a data file of a package, relative to a module.

    The module's loader reads it, so the package may be inside a zip file.
    """
    data = get_data(module, name)
    assert data is not None, f"the loader of {module} can't read files"
    return data

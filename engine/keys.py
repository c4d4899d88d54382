"""The keys of `callboard keys`, in a file next to models.yaml that only its owner may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.files import write_private
from callboard.tracestore.home import home_folder

# --- The file of keys ---

FILE_NAME = "keys.json"
ENVIRONMENT = "the environment"

_LARGEST = 1_000_000


class StoredKeys(msgspec.Struct, frozen=True):
    """The content of the key file, as far as it can be read. Its representation shows no key."""

    path: Path
    """The path of the file."""
    keys: Mapping[str, str] = {}
    """The keys by the names of their variables. Empty if there is a fault."""
    exists: bool = False
    """Whether there is a file."""
    fault: str | None = None
    """The reason why the file is ignored; None if it isn't."""
    fix: str = ""
    """How to solve the problem; empty without one."""

    def __repr__(self) -> str:
        return f"StoredKeys(path={str(self.path)!r}, keys={sorted(self.keys)}, fault={self.fault!r})"


class Variables(Mapping[str, str]):
    """The variables that may hold keys: the environment's first, then the file's.

    Args:
        environ: The environment. An empty variable is treated as not set.
        stored: The file.
    """

    def __init__(self, environ: Mapping[str, str], stored: StoredKeys) -> None:
        self._environ = environ
        self._stored = stored

    def __getitem__(self, name: str) -> str:
        return self._environ.get(name) or self._stored.keys[name]

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, value in self._environ.items() if value)
        yield from (name for name in self._stored.keys if not self._environ.get(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def source_of(self, name: str) -> str:
        """The source of a variable's value, as text."""
        return f"{name} in {ENVIRONMENT if self._environ.get(name) else self._stored.path}"


def source_of(variables: Mapping[str, str], name: str) -> str:
    """The source of a variable's value, as text."""
    return variables.source_of(name) if isinstance(variables, Variables) else f"{name} in {ENVIRONMENT}"


def keys_file() -> Path:
    """The path of the file, which may not exist."""
    return home_folder() / FILE_NAME


def read_keys(path: Path) -> StoredKeys:
    """Read a file of keys as far as possible. It never raises. A fault is reported without quoting the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return StoredKeys(path)
    except OSError as error:
        fix = "Make it readable for its owner, or remove it."
        return StoredKeys(path, exists=True, fault=f"it can't be read: {error.strerror or error}", fix=fix)
    with os.fdopen(descriptor, "rb") as file:
        # The mode of the open file is checked, because the path may now lead to another file.
        fault, fix = _exposed(path, os.fstat(descriptor))
        if fault:
            return StoredKeys(path, exists=True, fault=fault, fix=fix)
        data = file.read(_LARGEST)
    try:
        return StoredKeys(path, msgspec.json.decode(data, type=dict[str, str]), exists=True)
    except (msgspec.DecodeError, UnicodeError):
        fix = "Correct it, or remove it and set its keys again with `callboard keys set`."
    return StoredKeys(path, exists=True, fault="it is not a JSON object with a text for each name", fix=fix)


def _exposed(path: Path, status: os.stat_result) -> tuple[str, str]:
    """The reason why another user may read a file, and how to fix it; both empty if the file is safe."""
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file", "Remove it, and set its keys again with `callboard keys set`."
    if os.name == "nt":  # Windows modes don't describe other users.
        return "", ""
    if status.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user", "Remove it, and set its keys again with `callboard keys set`."
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        import shlex

        return f"other users may open it (mode {mode:04o})", f"chmod 600 {shlex.quote(str(path))}"
    return "", ""


# --- Changing the file ---


def change_key(path: Path, name: str, value: str | None) -> bool:
    """Store a key; with None, remove it. Returns whether the file had a key of that name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone_in(path.parent):
            stored = read_keys(path)
            if stored.fault is not None:
                raise ConfigurationError(f"{path}: {stored.fault}. {stored.fix}")
            keys = {**stored.keys, name: value}
            if value is None:
                del keys[name]
            write_private(path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
            return name in stored.keys
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be written: {error.strerror or error}") from error


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A lock on a folder, so that only one process changes it. It is released at the end of the block or of the
    process.
    """
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows has no flock; there the last who writes is right
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

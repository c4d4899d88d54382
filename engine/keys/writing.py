"""Changing the file of keys: whole or not at all, one process after the other, and never behind a link."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.private_file import write_private

from .key_file import read_keys


def set_key(path: Path, name: str, value: str) -> bool:
    """Keep a key.

    Args:
        path: The file, which is made if need be.
        name: The name of the key's variable.
        value: The key.

    Returns:
        Whether it replaced another one.

    Raises:
        ConfigurationError: The file can't be read or written. It stays as it was.
    """

    def change(keys: dict[str, str]) -> bool:
        replaced = name in keys
        keys[name] = value
        return replaced

    return _change(path, change)


def remove_key(path: Path, name: str) -> bool:
    """Forget a key.

    Returns:
        Whether there was one.

    Raises:
        ConfigurationError: The file can't be read or written. It stays as it was.
    """
    return _change(path, lambda keys: keys.pop(name, None) is not None)


def _change(path: Path, change: Callable[[dict[str, str]], bool]) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone_in(path.parent):
            stored = read_keys(path)
            if stored.fault is not None:
                raise ConfigurationError(f"{path}: {stored.fault}. {stored.fix}")
            keys = dict(stored.keys)
            changed = change(keys)
            write_private(path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
            return changed
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be written: {error.strerror or error}") from error


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A lock on a folder. It ends with the block, or with the process."""
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

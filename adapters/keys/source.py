"""The sources of keys that are no constants: a function of the host's, or a file that somebody replaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

KeySource: TypeAlias = Callable[[], str | Awaitable[str]]
"""Gives a key when it is asked. It is asked at the key's first use, and again when the provider refuses the key. A
plain function runs on the event loop, so it must not block for long."""


class KeyFile(msgspec.Struct, frozen=True):
    """A file that holds one key and nothing else: a `KeySource`."""

    path: str
    """The path of the file."""

    def __call__(self) -> str:
        """The text of the file.

        Raises:
            OSError: The file can't be read.
            UnicodeDecodeError: The file holds no text.
        """
        return Path(self.path).read_text(encoding="utf-8")

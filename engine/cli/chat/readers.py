"""Where a chat's messages come from: a pipe, or a terminal without the library that edits lines well."""

from __future__ import annotations

import contextlib
import sys
from typing import Protocol

from .blocks import is_open


class Reader(Protocol):
    """Reads what the person says."""

    def read(self) -> str | None:
        """The next message; None at the end of the input.

        Raises:
            KeyboardInterrupt: The person wants to leave.
        """

    def ask(self, question: str) -> str:
        """The answer to a question; empty at the end of the input.

        Raises:
            KeyboardInterrupt: The person wants to leave.
        """


class PlainReader:
    """Reads a message from each line, or from the lines between three quotation marks.

    Args:
        prompt: What stands before what the person writes; empty for a pipe.
    """

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (it gives input() arrows and a history)

    def read(self) -> str | None:
        text = self._line(f"\n{self._prompt}" if self._prompt else "")
        while text is not None and is_open(text):
            more = self._line("")
            if more is None:
                break
            text = f"{text}\n{more}"
        return text

    def ask(self, question: str) -> str:
        return self._line(question) or ""

    def _line(self, prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            return None

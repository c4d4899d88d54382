"""Standard output with a thread of its own, so that neither a full pipe nor a terminal that stands still holds up
the call. The call, in turn, is told at once when nobody reads any more. What the model thinks before it replies
goes through the same thread to standard error, so that both stand in their order on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Literal, TypeAlias

from ..common.harmless import harmless

Output: TypeAlias = Literal["stdout", "stderr"]


class Outlet:
    """Where a reply goes, piece by piece.

    At a terminal it is written without what could steer it; a file or a pipe gets the text as it came.

    Args:
        on_closed: Called once, in another thread, when the reader has gone or a write fails.
    """

    def __init__(self, on_closed: Callable[[], object]) -> None:
        self.closed = False
        """Whether the reader has gone, or the output can't be written."""
        self.last = ""
        """The last character that was given."""
        self._error: OSError | None = None
        self._on_closed = on_closed
        self._clean = harmless if sys.stdout.isatty() else _as_it_is
        self._shows_thoughts = sys.stderr.isatty()
        self._dim, self._undim = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        self._thinks = False  # the line that is being written
        self._pieces: SimpleQueue[tuple[Output, str] | None] = SimpleQueue()
        self._thread = Thread(target=self._write_all, name="callboard-stdout", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """More of the reply. It returns at once."""
        if text:
            self.end_thought()
            self.last = text[-1]
            self._pieces.put(("stdout", text))

    def think(self, text: str) -> None:
        """More of what the model thinks. Only a terminal shows it. It returns at once."""
        if text and self._shows_thoughts:
            begin = "" if self._thinks else self._dim
            self._thinks = True
            self._pieces.put(("stderr", begin + harmless(text)))

    def end_thought(self) -> None:
        """End the line of a thought, if one is being written."""
        if self._thinks:
            self._thinks = False
            self._pieces.put(("stderr", f"{self._undim}\n"))

    def end_line(self) -> None:
        """End the line that is being written, if one is."""
        if self.last not in ("", "\n"):
            self.write("\n")

    def finish(self) -> None:
        """Return when everything is written, or nobody reads it.

        Raises:
            BrokenPipeError: The reader has gone.
            OSError: The output can't be written, for example to a full disk.
        """
        self.end_thought()
        self._pieces.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write_all(self) -> None:
        while (piece := self._pieces.get()) is not None:
            output, text = piece
            if output == "stderr":
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(text)
                    sys.stderr.flush()
                continue
            if self.closed:
                continue
            try:
                sys.stdout.write(self._clean(text))
                sys.stdout.flush()
            except (OSError, ValueError) as error:  # ValueError: stdout never was open
                self._error = error if isinstance(error, OSError) else BrokenPipeError()
                self.closed = True
                self._on_closed()


def _as_it_is(text: str) -> str:
    return text

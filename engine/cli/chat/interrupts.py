"""Ctrl-C in a chat. What it does depends on what the chat is doing.

    idle       nothing at once: the next reading begins with KeyboardInterrupt, and the chat ends
    reading    KeyboardInterrupt, in the middle of reading
    replying   the reply is cancelled; a second one raises KeyboardInterrupt

Between these, Python would raise KeyboardInterrupt wherever the main thread happens to be: in a callback of the
garbage collector, too, where it is shown and lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Interrupts:
    """What Ctrl-C means, as long as the context lasts. On the main thread only."""

    def __init__(self) -> None:
        self._reading = False
        self._waiting = False
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The person is writing.

        Raises:
            KeyboardInterrupt: The person wants to leave, now or since the last reading.
        """
        try:
            self._reading = True
            if self._waiting:
                raise KeyboardInterrupt
            yield
        finally:
            self._reading = self._waiting = False

    @contextmanager
    def replying(self, cancel: Callable[[], object]) -> Iterator[None]:
        """A reply is coming.

        Args:
            cancel: Cancels it.
        """
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel, self._reading = None, False

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            self._reading = True  # a second one means it
            cancel()
        elif self._reading:
            raise KeyboardInterrupt
        else:
            self._waiting = True

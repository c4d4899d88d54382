"""Signals that ask a command to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `kill` and `timeout` send."""


@contextmanager
def first_signal(tell: Callable[[int], object]) -> Iterator[None]:
    """While this lasts, the first signal to end is told and does nothing else. A second one does what it always
    does. On the main thread only.

    Args:
        tell: Gets the signal's number.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        restore()
        tell(number)

    for number in ENDING:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()

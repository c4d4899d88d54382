"""Wall time, monotonic time, identifiers and randomness, injected so that tests decide them.

A clock never waits: waiting is anyio's, and tests run it on a virtual-time loop.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ulid import ULID


class Clock(Protocol):
    """The outside world besides I/O, as far as the runtime may ask for it."""

    def now_us(self) -> int:
        """The wall time in microseconds since the Unix epoch, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """The time in nanoseconds of a clock that never goes back; only differences mean anything."""
        ...

    def new_id(self, prefix: str) -> str:
        """A new identifier ``<prefix>_<ulid>``. It is unique, and sortable by the time at which it was made."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...


class SystemClock:
    """The real clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    monotonic_ns = staticmethod(time.monotonic_ns)  # itself, because a call asks fifteen times

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{_ulids.next()}"

    def random(self) -> float:
        import random

        return random.random()


@cache
def _ulid() -> type[ULID]:
    from ulid import ULID  # here, not above: it costs 20 ms of import that many programs never need

    return ULID


_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_SHIFTS = range(110, -1, -10)  # the first 24 of 26 letters of 5 bits; the first two bits are zero


class Ulids:
    """ULIDs as text, for any number of threads.

    The library makes the first of each millisecond. Those after it count up, as the library's would, at a fifth of
    the cost; a call has two.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._milliseconds = 0
        self._number = 0
        self._begin = 0  # all of a number but its last ten bits, and the letters of that
        self._letters = "0" * 24

    def next(self) -> str:
        """A new one. Of one process they sort in the order in which they were made."""
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now == self._milliseconds:
                self._number += 1
            else:
                self._number = int.from_bytes(_ulid()().bytes, "big")
                self._milliseconds = now
            return self.text(self._number)

    def text(self, number: int) -> str:
        """What `str` makes of a ULID, two letters at a time. Most begin like the one before."""
        begin = number >> 10
        if begin != self._begin:
            self._letters = "".join([_PAIRS[begin >> shift & 1023] for shift in _SHIFTS])
            self._begin = begin
        return self._letters + _PAIRS[number & 1023]


_ulids = Ulids()

SYSTEM_CLOCK: Clock = SystemClock()
"""The real clock, which is what everybody has who is given none."""

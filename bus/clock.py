"""Wall time, monotonic time, identifiers and randomness, injected so that tests decide them.

A clock never waits: waiting is anyio's, and tests run it on a virtual-time loop.
"""

from __future__ import annotations

import os
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
_RANDOM_BITS = 80


def letters(number: int, count: int) -> str:
    """The last `count` letters of a number in ULID's alphabet, which has one for five bits. The count is even."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(5 * count - 10, -1, -10)])


class Ulids:
    """ULIDs as text, for any number of threads.

    The library makes the first of each second, which here has 1,024 ms, because two letters hold ten bits. Those
    after it have their own time, and count its random part up, as the library does within a millisecond: that is a
    tenth of the cost, and a call has two.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._second = 0
        self._random = 0
        self._second_letters = ""
        self._random_letters = ""  # without the last two

    def next(self) -> str:
        """A new one. Of one process they sort in the order in which they were made."""
        with self._lock:
            now = time.time_ns() // 1_000_000
            self._random += 1
            if now >> 10 != self._second or not self._random & 1023:
                now = self._begin(now)
            random = self._random_letters + _PAIRS[self._random & 1023]
            return self._second_letters + _PAIRS[now & 1023] + random

    def _begin(self, now: int) -> int:
        if now >> 10 != self._second or self._random >> _RANDOM_BITS:
            number = int.from_bytes(_ulid()().bytes, "big")
            now, self._random = number >> _RANDOM_BITS, number & (1 << _RANDOM_BITS) - 1
            self._second = now >> 10
            self._second_letters = letters(self._second, 8)
        self._random_letters = letters(self._random >> 10, 14)
        return now

    def forget(self) -> None:
        """Let the library make the next one: another process goes on from the same number."""
        self._lock = threading.Lock()
        self._second = 0


_ulids = Ulids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ulids.forget)

SYSTEM_CLOCK: Clock = SystemClock()
"""The real clock, which is what everybody has who is given none."""

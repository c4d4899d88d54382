"""Wall time, monotonic time, identifiers and randomness, injected so that tests decide them.

A clock never waits: waiting is anyio's, and tests run it on a virtual-time loop.
"""

from __future__ import annotations

import os
import time
from threading import Lock
from typing import Protocol


class Clock(Protocol):
    """What the runtime may ask of the outside world besides I/O."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes back; only differences mean anything."""
        ...

    def new_id(self, prefix: str) -> str:
        """A new identifier ``<prefix>_<ulid>``: unique, and sortable by the time it was made."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...


class SystemClock:
    """The real one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._latest = 0  # the latest ULID

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{ulid_text(self._new_ulid())}"

    def random(self) -> float:
        import random

        return random.random()

    def _new_ulid(self) -> int:
        """48 bits of milliseconds and 80 of chance; of one millisecond, each is greater than the one before.

        The step is one of chance, too: a process that is forked goes on with other numbers than its parent.
        """
        chance = int.from_bytes(os.urandom(_CHANCE_BYTES), "big")
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            same = now_ms == self._latest >> _CHANCE_BITS
            self._latest = self._latest + 1 + (chance & 0xFFFFFFFF) if same else now_ms << _CHANCE_BITS | chance
            return self._latest


_CHANCE_BYTES = 10
_CHANCE_BITS = 8 * _CHANCE_BYTES
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_SHIFTS = range(120, -1, -10)  # 26 letters of 5 bits, the first two bits are zero


def ulid_text(number: int) -> str:
    """A number of 128 bits as a ULID is written, two letters at a time: a call has four identifiers."""
    pairs = _PAIRS
    return "".join([pairs[number >> shift & 1023] for shift in _SHIFTS])


SYSTEM_CLOCK: Clock = SystemClock()
"""The real clock, which is what everybody has who is given none."""

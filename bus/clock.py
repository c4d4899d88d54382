"""Wall time, monotonic time, identifiers and randomness, injected so that tests decide them.

A clock never waits: waiting is anyio's, and tests run it on a virtual-time loop.
"""

from __future__ import annotations

import os
import random
import time
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

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{new_ulid()}"

    def random(self) -> float:
        return random.random()


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(120, -10, -10)

_ids = random.Random()  # of our own: a program that seeds the module's must not repeat its ids
os.register_at_fork(after_in_child=_ids.seed)


def new_ulid() -> str:
    """48 bits of milliseconds since the epoch and 80 random ones, in 26 characters that sort by time."""
    number = (time.time_ns() // 1_000_000) << 80 | _ids.getrandbits(80)
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


SYSTEM_CLOCK: Clock = SystemClock()

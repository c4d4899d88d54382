"""Wall time, monotonic time, identifiers and randomness, injected so that tests decide them.

A clock never waits: waiting is anyio's, and tests run it on a virtual-time loop.
"""

from __future__ import annotations

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
        return f"{prefix}_{ulid_text(_ulid()().bytes)}"

    def random(self) -> float:
        import random

        return random.random()


@cache
def _ulid() -> type[ULID]:
    from ulid import ULID  # here, not above: it costs 20 ms of import that many programs never need

    return ULID


_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]


def ulid_text(ulid: bytes) -> str:
    """What `str` makes of a ULID, in a third of the time or less: a call has four identifiers.

    Two letters are looked up at a time. ULIDs of one millisecond count up, so that most of them begin like the one
    before.
    """
    global _former
    number = int.from_bytes(ulid, "big")
    begin, last = number >> 10, number & 1023
    known, letters = _former
    if begin != known:
        letters = "".join([_PAIRS[begin >> shift & 1023] for shift in _SHIFTS])
        _former = begin, letters
    return letters + _PAIRS[last]


_SHIFTS = range(110, -1, -10)  # the first 24 of 26 letters of 5 bits; the first two bits are zero
_former = (0, "0" * 24)

SYSTEM_CLOCK: Clock = SystemClock()
"""The real clock, which is what everybody has who is given none."""

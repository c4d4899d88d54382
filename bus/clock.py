"""Clocks: time, identifiers and randomness, injected so that tests control them.

A clock never waits: use anyio for that. Tests run it on a virtual-time loop.
"""

from __future__ import annotations

import os
import time
from typing import Protocol


class Clock(Protocol):
    """The source of time, identifiers and randomness."""

    def now_us(self) -> int:
        """The wall time in microseconds since the Unix epoch, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """The time in nanoseconds of a clock that never goes back; only differences mean anything."""
        ...

    def new_id(self, prefix: str) -> str:
        """A new identifier ``<prefix>_<ulid>``.

        It is unique and unguessable. Ids sort by the millisecond in which they were made.
        """
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...


class SystemClock:
    """The real clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    monotonic_ns = staticmethod(time.monotonic_ns)  # the function itself, because a call uses it fifteen times

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{_ulids.next()}"

    def random(self) -> float:
        import random

        return random.random()


_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _LETTERS for second in _LETTERS]
_RANDOM_LETTERS = 16
_AT_ONCE = 256
_LETTER_OF_BYTE = bytes(ord(_LETTERS[byte & 31]) for byte in range(256))


def letters(number: int, count: int) -> str:
    """The last `count` letters of a number in ULID's alphabet, five bits each. The count is even."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(5 * count - 10, -1, -10)])


class Ulids:
    """ULIDs as text, for any number of threads.

    Each one has 80 random bits from the operating system. So one id does not reveal another, and an id can be part
    of an address. The random letters of 256 ids are made together to save system calls. Ids sort by the
    millisecond of their creation, without an order inside it.
    """

    def __init__(self) -> None:
        self._second = (0, "")  # The current 1,024 ms, because two letters hold ten bits, and its letters.
        self._random: list[str] = []  # each is used once

    def next(self) -> str:
        now = time.time_ns() // 1_000_000
        second, written = self._second
        if now >> 10 != second:
            second, written = self._second = (now >> 10, letters(now >> 10, 8))
        try:
            return (
                written + _PAIRS[now & 1023] + self._random.pop()
            )  # one step, so that no two threads get the same
        except IndexError:
            first, *others = _random_letters()
            self._random.extend(others)
            return written + _PAIRS[now & 1023] + first

    def forget(self) -> None:
        """Drop unused random letters. After a fork, the other process has the same ones."""
        self._random = []


def _random_letters() -> list[str]:
    """The random parts of many identifiers. One random byte gives one letter of five bits."""
    text = os.urandom(_RANDOM_LETTERS * _AT_ONCE).translate(_LETTER_OF_BYTE).decode("ascii")
    return [text[start : start + _RANDOM_LETTERS] for start in range(0, len(text), _RANDOM_LETTERS)]


_ulids = Ulids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ulids.forget)

SYSTEM_CLOCK: Clock = SystemClock()
"""The real clock, the default everywhere."""

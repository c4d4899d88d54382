"""Clocks: time, identifiers and randomness, injected so that tests control them.

A clock has no method that waits: use anyio for that. In tests, a clock follows the virtual time of the event loop.
Times are in microseconds since the epoch, UTC.
"""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

US_PER_DAY = 86_400_000_000

_AGO = re.compile(r"(\d{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_DAYS = 146_097
"""The days of 400 years, after which the calendar repeats itself."""
_CYCLE_BEGIN = date(2000, 1, 1)


def to_us(moment: int | datetime) -> int:
    """Convert microseconds or an aware datetime to microseconds since the epoch. Raises ValueError for a naive
    datetime.
    """
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone, so it is ambiguous")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    """Convert microseconds since the epoch exactly. A timestamp in seconds would be an inexact float."""
    return _EPOCH + timedelta(microseconds=moment_us)


def iso_day(day: int) -> str:
    """Format days since the epoch as an ISO date (UTC). Years outside 1 to 9999 get a sign and at least six
    digits.

    A wrong system clock produces such days. They must not prevent the display of the other rows.
    """
    cycles, rest = divmod(day - (_CYCLE_BEGIN - _EPOCH.date()).days, _CYCLE_DAYS)
    within = _CYCLE_BEGIN + timedelta(days=rest)
    year = within.year + 400 * cycles
    return f"{f'{year:04}' if 1 <= year <= 9999 else f'{year:+07}'}{within:-%m-%d}"


def iso_moment(moment_us: int) -> str:
    """Microseconds since the epoch as an ISO time (UTC), for any year."""
    day, within = divmod(moment_us, US_PER_DAY)
    time = (_EPOCH + timedelta(microseconds=within)).time()
    return f"{iso_day(day)}T{time.isoformat(timespec='microseconds')}+00:00"


def read_moment(text: str) -> datetime:
    """Parse a moment: a day, a time, or an age such as 90m, 24h, 7d or 2w.

    A day or a time without a zone is local.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no day or time such as 2026-07-01, 2026-07-01T12:00, or 24h or 7d ago"
        ) from None
    return found if found.tzinfo is not None else found.astimezone()


class Clock(Protocol):
    """The source of time, identifiers and randomness."""

    def now_us(self) -> int:
        """The wall time in microseconds since the Unix epoch, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """The time of a monotonic clock in nanoseconds. Only differences are meaningful."""
        ...

    def new_id(self, prefix: str) -> str:
        """A new identifier ``<prefix>_<ulid>``.

        An id is unique and unguessable. Ids sort by the millisecond in which they were made.
        """
        ...

    def random(self) -> float:
        """A random number in [0, 1), for jitter."""
        ...


class SystemClock:
    """The real clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    monotonic_ns = staticmethod(time.monotonic_ns)  # not wrapped, because a call uses it fifteen times

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

    Each id has 80 random bits from the operating system, so ids can't be guessed and may be part of a URL. The
    random letters of 256 ids are made together to save system calls. Ids sort by the millisecond of their
    creation; within a millisecond their order is random.
    """

    def __init__(self) -> None:
        self._second = (0, "")  # The current period of 1,024 ms and its letters. Two letters encode ten bits.
        self._random: list[str] = []  # each element is used once

    def next(self) -> str:
        now = time.time_ns() // 1_000_000
        second, written = self._second
        if now >> 10 != second:
            second, written = self._second = (now >> 10, letters(now >> 10, 8))
        try:
            return (
                written + _PAIRS[now & 1023] + self._random.pop()
            )  # popped in one step, so that two threads never get the same value
        except IndexError:
            first, *others = _random_letters()
            self._random.extend(others)
            return written + _PAIRS[now & 1023] + first

    def forget(self) -> None:
        """Drop the unused random letters, because after a fork both processes would use the same letters."""
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

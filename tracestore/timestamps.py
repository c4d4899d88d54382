"""Moments in microseconds UTC since the epoch, and as datetimes."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

US_PER_DAY = 86_400_000_000

_AGO = re.compile(r"(\d{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_DAYS = 146_097
"""Of 400 years, after which the calendar repeats itself."""
_CYCLE_BEGIN = date(2000, 1, 1)


def to_us(moment: int | datetime) -> int:
    """Microseconds since the epoch, of those or of an aware datetime. Raises ValueError for a naive one."""
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone, so it is ambiguous")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    """The same moment, exactly: a timestamp in seconds would be a float."""
    return _EPOCH + timedelta(microseconds=moment_us)


def iso_day(day: int) -> str:
    """Days since the epoch as an ISO date (UTC); beyond the years 1 to 9999 with a sign and six digits or more.

    A clock that is set to nonsense gives such days, and they are no reason to show nothing of the others.
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
    """The moment that people mean by a text: a day, a time, or a time ago such as 90m, 24h, 7d or 2w.

    A day or a time without a zone is local.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a day or time such as 2026-07-01, 2026-07-01T12:00, or 24h or 7d ago"
        ) from None
    return found if found.tzinfo is not None else found.astimezone()

"""Moments in microseconds UTC since the epoch, and as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

US_PER_DAY = 86_400_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: int | datetime) -> int:
    """Microseconds since the epoch, of those or of an aware datetime. Raises ValueError for a naive one."""
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: nobody knows which moment that is")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    """The same moment, exactly: a timestamp in seconds would be a float."""
    return _EPOCH + timedelta(microseconds=moment_us)

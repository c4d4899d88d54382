"""When a budget begins anew: never, each calendar hour, day or month of a time zone, or as time rolls on.

Time is cut into slots. A calendar window is one slot. A rolling window is many: it counts each slot until the
slot's last moment has left the window, so it never forgets anything too early, and the amount of memory does not
depend on the number of calls.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Calendar: TypeAlias = Literal["hour", "day", "month"]

SLOTS = 60
"""The slots of a rolling window; what is spent leaves it in steps of a sixtieth of its length."""

ENDLESS_US = 1 << 62
"""A moment that never comes, in microseconds."""


class Slot(msgspec.Struct, frozen=True, order=True, gc=False):
    """A stretch of time, in microseconds since the Unix epoch."""

    start_us: int
    """The first moment of the slot."""
    end_us: int
    """The first moment after the slot."""


FOREVER = Slot(-ENDLESS_US, ENDLESS_US)


class Window(msgspec.Struct, frozen=True):
    """The time over which a budget counts.

    Raises:
        ValueError: A rolling window is shorter than a second, or the time zone is unknown.
    """

    calendar: Calendar | None = None
    """The calendar's unit; None for a rolling window, or for none."""
    zone: str = "UTC"
    """The time zone of the calendar, by its IANA name."""
    rolling: timedelta | None = None
    """The length of a rolling window."""

    def __post_init__(self) -> None:
        if self.calendar is not None and self.rolling is not None:
            raise ValueError("a window is one of the calendar's or a rolling one, and not both")
        if self.calendar not in (None, "hour", "day", "month"):
            raise ValueError(f"{self.calendar!r} is no window: take 'hour', 'day', 'month', or a timedelta")
        if self.rolling is not None and self.rolling < timedelta(seconds=1):
            raise ValueError(f"a window of {self.rolling} is too short: it takes at least a second")
        try:
            _zone(self.zone)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"{self.zone!r} is no time zone: take a name such as 'Europe/Zurich'") from error

    @property
    def rolling_us(self) -> int:
        """The length of a rolling window in microseconds; 0 if the window does not roll."""
        return 0 if self.rolling is None else self.rolling // timedelta(microseconds=1)

    def slot(self, now_us: int) -> Slot:
        """The slot that a moment belongs to."""
        if self.rolling is not None:
            length = max(self.rolling_us // SLOTS, 1)
            start = now_us // length * length
            return Slot(start, start + length)
        if self.calendar is None:
            return FOREVER
        return _calendar_slot(self.calendar, _zone(self.zone), now_us)

    def forgets_us(self, slot: Slot) -> int:
        """The moment from which a slot does not count any more."""
        return slot.end_us + self.rolling_us if self.rolling is not None else slot.end_us


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # 2 ms, for the programs that have budgets

    return ZoneInfo(name)


def _calendar_slot(unit: Calendar, zone: ZoneInfo, now_us: int) -> Slot:
    now = datetime.fromtimestamp(now_us // 1_000_000, zone)
    if unit == "hour":
        # An hour of the clock that is set back comes twice, and is two slots; `fold` keeps them apart.
        start = now.replace(minute=0, second=0)
        return _between(start, (start.astimezone(UTC) + timedelta(hours=1)).astimezone(zone))
    start = now.replace(hour=0, minute=0, second=0, fold=0)
    if unit == "month":
        start = start.replace(day=1)
        return _between(start, (start + timedelta(days=32)).replace(day=1))
    return _between(start, start + timedelta(days=1))


def _between(start: datetime, end: datetime) -> Slot:
    return Slot(_us(start), _us(end))


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000

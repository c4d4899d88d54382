"""The decisions of a shipper, without any work: the next step, and the time to wait.

- **asking**: the target's position is unknown. It is asked first of all, and after every failure, because a
  connection may have broken before the commit or after it.
- **shipping**: batch after batch is read behind the position, and sent.
- **resting**: everything is sent. The file is checked again after a while, or immediately after `hurry`. Now and
  then the target is asked, too: it may be unreachable by now, or restored from a backup.
- **retrying**: the target or the file failed. It is asked after a while, which doubles with each failure.

The position moves in two ways only: to the end of a batch that the target has committed, and to the target's own
answer. So it never skips an event that the target lacks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .shipment import START, Position

State: TypeAlias = Literal["asking", "shipping", "resting", "retrying"]


class ShippingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes and the patience of a shipper."""

    batch_events: int = 5000
    """The number of events in a transaction of the target."""
    look_seconds: float = 0.5
    """The time after which the file is looked at again when everything is shipped, in seconds."""
    ask_seconds: float = 60.0
    """The time after which a target is asked again that nothing was sent to, in seconds."""
    first_retry: float = 0.5
    """The wait after a first failure, in seconds. It doubles with each further failure."""
    longest_retry: float = 30.0
    """The longest such wait, in seconds."""


class Ask(msgspec.Struct, frozen=True):
    """Ask the target for its position, and pass it to `Course.asked`."""


class Send(msgspec.Struct, frozen=True):
    """Read behind a position, send, and report with `Course.sent` or `Course.unstorable`."""

    after: Position
    limit: int
    """The number of events at most."""


class Rest(msgspec.Struct, frozen=True):
    """Do nothing for this time, or until `hurry`."""

    seconds: float


Step: TypeAlias = Ask | Send | Rest


class Course:
    """Where a shipper stands, and what it does next. Times are seconds of any clock that never goes back."""

    def __init__(self, options: ShippingOptions) -> None:
        self._options = options
        self._until = 0.0
        self._ask_at = 0.0
        self._limit = options.batch_events
        self.state: State = "asking"
        self.position = START
        self.failures = 0
        """The number of failures in a row."""

    def next(self, now: float) -> Step:
        """The next step at this time."""
        if self.state in ("resting", "retrying"):
            if now < self._until:
                return Rest(self._until - now)
            self.state = "shipping" if self.state == "resting" and now < self._ask_at else "asking"
        if self.state == "asking":
            self._ask_at = now + self._options.ask_seconds
            return Ask()
        return Send(self.position, self._limit)

    def asked(self, position: Position) -> None:
        """The target has everything up to this position."""
        self.position, self.state = position, "shipping"

    def sent(self, position: Position) -> None:
        """The target has committed everything up to this position."""
        self.position, self.failures = position, 0
        self._limit = min(self._options.batch_events, self._limit * 2)

    def nothing_left(self, now: float) -> None:
        """There is nothing behind the position."""
        self.state, self.failures = "resting", 0
        self._until = now + self._options.look_seconds

    def unstorable(self, events: int, last: Position) -> bool:
        """The target can't take something in a batch, and would never. Smaller batches single it out."""
        if events > 1:
            self._limit = max(1, min(events, self._limit) // 2)
            return False
        self.sent(last)
        return True

    def failed(self, now: float) -> float:
        """The target or the file could not be used. Returns the seconds until the next attempt."""
        self.failures += 1
        options = self._options
        wait = min(options.first_retry * 2.0 ** min(self.failures - 1, 30), options.longest_retry)
        self.state, self._until = "retrying", now + wait
        return wait

    def hurry(self) -> None:
        """End a rest, because a caller waits. A failing target keeps its pause."""
        if self.state == "resting":
            self._until = 0.0

"""The decisions of a bridge, without any work: what goes out next, and what waits. Its states:

    current    what was committed since the last page went out waits in memory
    behind     too much waited, or was committed before the bridge began: it is read from the trace again

One page is on its way at a time, until the broker has acknowledged it. What is not acknowledged goes out again,
the same page under the same id. So the cursor, which only an acknowledgement moves, is never behind an event that
the broker lacks; and whatever goes out twice, readers drop by its numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from .page import Page

MOST_WAITING = 8 * 1024 * 1024
"""The bytes of pages that wait in memory at most."""

FIRST_RETRY = 0.1
"""Seconds until a page goes out again. They double with each failure that follows."""

LONGEST_RETRY = 5.0
"""The most that these seconds come to."""


class Send(msgspec.Struct, frozen=True):
    """Send a page, and tell `Outgoing.acknowledged` or `Outgoing.failed`."""

    page: Page


class Read(msgspec.Struct, frozen=True):
    """Read the events behind one from the trace, and tell `Outgoing.read`, or `Outgoing.failed`."""

    after: int
    """The `seq` of the event before them."""


class Rest(msgspec.Struct, frozen=True):
    """Do nothing, until there is something new."""

    seconds: float | None
    """The seconds after which to go on in any case. None: there is nothing to do."""


Step: TypeAlias = Send | Read | Rest


class Outgoing:
    """How far one run's events have gone out. Times are seconds of any clock that never goes back.

    Args:
        behind: Whether events may have been committed already.
    """

    def __init__(self, *, behind: bool = False) -> None:
        self.cursor = 0
        """The `seq` up to which the broker has everything."""
        self.last = 0
        """The `seq` of the last event that waits or has gone out."""
        self.committed = 0
        """The `seq` of the last event that is known to be committed."""
        self.failures = 0
        """The number of failures in a row."""
        self.is_behind = behind
        self._waiting: deque[Page] = deque()
        self._bytes = 0
        self._retry_at = 0.0
        self._asked = 0  # `committed`, when the trace was asked

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the pages that wait."""
        return self._bytes

    def next(self, now: float, *, connected: bool) -> Step:
        """The next step at this time.

        Args:
            now: The time.
            connected: Whether the broker can be reached.
        """
        if not connected:
            return Rest(None)
        if not self._waiting and not self.is_behind:
            return Rest(None)
        if now < self._retry_at:
            return Rest(self._retry_at - now)
        if self._waiting:
            return Send(self._waiting[0])
        self._asked = self.committed
        return Read(self.last)

    def add(self, pages: Sequence[Page]) -> None:
        """Pages of events that were committed just now, behind `last`, while it is current."""
        self._enqueue(pages)
        self.committed = max(self.committed, self.last)
        if self._bytes > MOST_WAITING and len(self._waiting) > 1:
            self._fall_behind()

    def note(self, seq: int) -> None:
        """Events up to this one were committed, while it is behind."""
        self.committed = max(self.committed, seq)

    def read(self, pages: Sequence[Page]) -> None:
        """What the trace has behind `last`. Without pages there was nothing."""
        self._enqueue(pages)
        if self.last >= self.committed or (not pages and self.committed == self._asked):
            self.is_behind = False

    def acknowledged(self, page: Page) -> None:
        """The broker has the page."""
        self.failures, self._retry_at = 0, 0.0
        self.cursor = max(self.cursor, page.last)
        if self._waiting and self._waiting[0] == page:
            self._waiting.popleft()
            self._bytes -= len(page.lines or b"")

    def failed(self, now: float) -> None:
        """The broker has not said that it has the page, or the trace can't be read."""
        self.failures += 1
        self._retry_at = now + min(FIRST_RETRY * 2.0 ** min(self.failures - 1, 20), LONGEST_RETRY)

    def connected(self) -> None:
        """The broker is back: whatever waits goes out at once."""
        self.failures, self._retry_at = 0, 0.0

    def _enqueue(self, pages: Sequence[Page]) -> None:
        for page in pages:
            self._waiting.append(page)
            self._bytes += len(page.lines or b"")
            self.last = page.last

    def _fall_behind(self) -> None:
        """Forget what waits, but for the page that may be on its way."""
        first = self._waiting[0]
        self._waiting = deque([first])
        self._bytes = len(first.lines or b"")
        self.last = first.last
        self.is_behind = True

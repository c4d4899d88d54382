"""Events that wait in memory to be stored, and about how much they keep alive."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from callboard.bus.events.envelope import Envelope
from callboard.bus.events.sessions import SessionMessageAppended
from callboard.bus.streams.fold import weigh_content

EVENT_BYTES = 1024
"""What an event weighs besides the content that it refers to."""


class Waiting:
    """Events that wait to be stored, first in, first out.

    `size` is roughly the number of bytes that the events keep alive, with the messages that they refer to.
    """

    def __init__(self) -> None:
        self.size = 0
        self._events: deque[Envelope] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def exceeds(self, events: int, size: int) -> bool:
        """Whether more events or bytes wait than these limits. An empty queue never exceeds them."""
        return bool(self._events) and (len(self._events) > events or self.size > size)

    def add(self, envelopes: Sequence[Envelope]) -> None:
        self._events.extend(envelopes)
        self.size += _weigh(envelopes)

    def first(self, limit: int | None = None) -> list[Envelope]:
        """The oldest events. They still wait.

        Args:
            limit: The largest number of events; None is all of them.
        """
        return list(islice(self._events, limit))

    def after(self, oldest: int, limit: int) -> list[Envelope]:
        """The events behind the oldest ones. They still wait.

        Args:
            oldest: The number of oldest events to pass over.
            limit: The largest number of events.
        """
        events = self._events  # which is quick at both of its ends; islice would walk over the oldest
        return [events[at] for at in range(oldest, min(len(events), oldest + limit))]

    def remove(self, oldest: Sequence[Envelope]) -> None:
        """Take off what `first` returned, or the beginning of it."""
        for _ in oldest:
            self._events.popleft()
        self.size = self.size - _weigh(oldest) if self._events else 0

    def drop_newest(self) -> Envelope:
        """Take off the one that came last."""
        newest = self._events.pop()
        self.size -= _weigh([newest])
        return newest


def _weigh(envelopes: Sequence[Envelope]) -> int:
    size = EVENT_BYTES * len(envelopes)
    for envelope in envelopes:
        if isinstance(event := envelope.data, SessionMessageAppended):
            size += weigh_content(event.message.content)
    return size

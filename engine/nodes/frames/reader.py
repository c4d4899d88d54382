"""A reader of a stream whose turn runs on another node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from callboard.adapters.replies.whole import spelled_out
from callboard.bus import ReaderStatistics, StreamLog, StreamReader
from callboard.bus.streams.events import TurnEvent

from .follower import unknown_anywhere


class Filling(Protocol):
    """A log that is being filled from elsewhere."""

    log: StreamLog[TurnEvent]
    """The log."""
    stored: bool
    """Whether it was made of what is stored, so that its numbers are not those of the owner."""

    async def settled(self) -> None:
        """Return when it is known how far the stream is by now."""


class RemoteReader(StreamReader[TurnEvent]):
    """A reader of a log that is filled from elsewhere. It begins with the first read.

    What `attach` would raise for a stream of this node is raised by the first read: UnknownStream if no node has
    the stream and nothing is stored of it, or if it has another owner. ValueError if `from_seq` is beyond the end.

    Args:
        filling: The log, and what is known of it.
        from_seq: As for `StreamLog.reader`.
        begin: A function that has the log filled.
        coalesce: As for `StreamLog.reader`.
        min_interval: As for `StreamLog.reader`.
        owner: As for `StreamChannel.attach`.
        any_owner: As for `StreamChannel.attach`.
    """

    def __init__(
        self,
        filling: Filling,
        from_seq: int | Literal["tail"],
        begin: Callable[[], Awaitable[None]],
        *,
        coalesce: bool = False,
        min_interval: float = 0.0,
        owner: str | None = None,
        any_owner: bool = False,
    ) -> None:
        start = 0 if from_seq == "tail" else from_seq
        if start < 0:
            raise ValueError(f"the events of a stream are counted from 0; from_seq={from_seq}")
        super().__init__(filling.log, start, coalesce=coalesce, min_interval=min_interval, unfold=spelled_out)
        self._filling = filling
        self._begin = begin
        self._tail = from_seq == "tail"
        self._placed = False
        self._owner = owner
        self._any_owner = any_owner

    async def _refill(self) -> None:
        if not self._placed:
            await self._place()
        await super()._refill()

    async def _place(self) -> None:
        """Wait until the first event can be read that is wanted, or there is none."""
        await self._begin()
        log = self._log
        if self._tail:
            await self._filling.settled()
            self._cursor = log.next_seq
            self.seq = self._cursor - 1
        if not self._any_owner:
            await self._check_owner()
        while self._cursor > log.next_seq and not log.closed and not self._closed:
            await log._changed()
        if self._filling.stored and self._cursor > 0:
            self._cursor, self._unfold = 0, None  # what it has read has other numbers: it begins anew
        elif self._cursor > log.next_seq and log.error is None and not self._closed:
            self.close()
            raise ValueError(
                f"stream {self.stream_id} has events 0 to {log.next_seq - 1}; from_seq={self._cursor}"
            )
        self._placed = True

    async def _check_owner(self) -> None:
        """Raise UnknownStream if the stream has another owner. The first frame with events says whose it is."""
        log = self._log
        while not log.next_seq and not log.closed and not self._closed:
            await log._changed()
        if log.error is None and log.next_seq and log.owner != self._owner:
            self.close()
            raise unknown_anywhere(self.stream_id)

    def statistics(self) -> ReaderStatistics:
        """A snapshot of how far this reader is."""
        seen = super().statistics()
        return ReaderStatistics(seen.seq, max(seen.lag, 0), seen.delivered, seen.resets)

"""The streaming channel: the logs of all streams, by id, and their retention.

    open ──close()──▶ kept whole for `retain_seconds` ──▶ folded ──▶ evicted, least recently used first

A reader that attaches before the eviction gets all content. Later, `attach` raises `UnknownStream`. `max_bytes`
bounds all closed logs: above it, the oldest ones are folded early, and then evicted. An open log limits its own
size. There is no timer: the expiry is checked when a log is opened, attached to or closed, because memory grows
only then.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import msgspec

from ..clock import Clock
from ..errors import UnknownStream
from .events import TurnEvent
from .log import ReaderStatistics, StreamLog, StreamReader, StreamReset, Unfold

__all__ = ["StreamChannel", "StreamChannelStatistics", "StreamInfo", "StreamLog", "StreamReader", "StreamReset"]


OWNER_TAG = "owner"
"""The tag of a session or call that names the owner of its streams, see `Engine.attach`."""


class StreamChannelStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a channel."""

    open: int
    """The number of logs that are open now."""
    kept: int
    """The number of closed logs that are kept whole now."""
    folded: int
    """The number of closed logs that are folded now."""
    evicted: int
    """The number of evicted logs."""
    closed_bytes: int
    """The approximate memory of the closed logs, in bytes."""
    readers: int
    """The total number of readers."""
    max_lag: int
    """The number of events that the slowest reader has not read yet."""


class StreamInfo(msgspec.Struct, frozen=True):
    """A snapshot of one stream of the channel."""

    stream_id: str
    """The id of the stream."""
    state: Literal["open", "kept", "folded"]
    """``open`` while in progress, then ``kept`` event by event, and later ``folded``."""
    events: int
    """The number of events in the log."""
    bytes: int
    """The approximate memory of the log, in bytes."""
    readers: tuple[ReaderStatistics, ...]
    """The snapshots of the stream's readers."""
    session_id: str | None = None
    """The session of the stream's turn; None for a turn without a session."""
    model: str | None = None
    """The model that the turn requested, as text; None if unknown here."""
    began_us: int = 0
    """The time at which the stream was opened here, in microseconds since the epoch, UTC."""
    ended_us: int | None = None
    """The time at which the stream ended, in the same unit; None while it is open."""


class _Opened(msgspec.Struct):
    session_id: str | None
    model: str | None
    began_us: int


class _Closed(msgspec.Struct):
    log: StreamLog[TurnEvent]
    closed_ns: int
    bytes: int
    opened: _Opened
    ended_us: int


class StreamChannel:
    """All streams of a host. Use a channel in one thread only.

    Args:
        clock: The clock that measures how long a closed log is kept.
        retain_seconds: Seconds for which a closed log is kept event by event; then it is folded.
        max_bytes: The bytes of all closed logs together. Above it, the oldest logs are folded, and then dropped.
    """

    def __init__(self, *, clock: Clock, retain_seconds: float = 60.0, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._clock = clock
        self._retain_ns = int(retain_seconds * 1e9)
        self._max_bytes = max_bytes
        self._open: dict[str, StreamLog[TurnEvent]] = {}
        self._opened: dict[str, _Opened] = {}  # the open logs
        self._retained: OrderedDict[str, _Closed] = OrderedDict()  # in the order in which they were closed
        self._folded: OrderedDict[str, _Closed] = OrderedDict()  # in the order of their last use
        self._closed_bytes = 0
        self._evicted = 0

    def open(
        self,
        stream_id: str,
        owner: str | None = None,
        *,
        session_id: str | None = None,
        model: str | None = None,
    ) -> StreamLog[TurnEvent]:
        """Open a new log.

        Args:
            stream_id: The id of the stream.
            owner: The owner that `attach` must name; None for a stream without one.
            session_id: The session of the turn, for `streams()`.
            model: The model that the turn requested, as text, for `streams()`.

        Raises:
            ValueError: A log of that id exists.
        """
        if stream_id in self._open or stream_id in self._retained or stream_id in self._folded:
            raise ValueError(f"a stream {stream_id!r} already exists. Every stream needs a unique id")
        log: StreamLog[TurnEvent] = StreamLog(
            stream_id, on_close=self._closed, owner=owner, session_id=session_id or ""
        )
        self._open[stream_id] = log
        self._opened[stream_id] = _Opened(session_id, model, self._clock.now_us())
        return log

    def attach(
        self,
        stream_id: str,
        *,
        from_seq: int | Literal["tail"] = 0,
        coalesce: bool = False,
        min_interval: float = 0.0,
        unfold: Unfold[TurnEvent] | None = None,
        owner: str | None = None,
        any_owner: bool = False,
    ) -> StreamReader[TurnEvent]:
        """Attach a reader to a stream in progress or ended. The stream is independent of its readers.

        Args:
            stream_id: The id of the stream.
            from_seq: The seq of the first event to read, as for `StreamLog.reader`.
            coalesce: As for `StreamLog.reader`.
            min_interval: As for `StreamLog.reader`, in seconds.
            unfold: As for `StreamLog.reader`.
            owner: The owner that the stream must have; None for a stream without one.
            any_owner: Whether to read the stream of any owner.

        Raises:
            UnknownStream: No log of that id exists, it has expired, or it has another owner.
            ValueError: `from_seq` is negative or after the end.
        """
        log = self.log(stream_id)
        if log.owner != owner and not any_owner:
            raise unknown_stream(stream_id)
        return log.reader(from_seq, coalesce=coalesce, min_interval=min_interval, unfold=unfold)

    def log(self, stream_id: str) -> StreamLog[TurnEvent]:
        """The log of a stream in progress or ended.

        Raises:
            UnknownStream: No log of that id exists, or it has expired.
        """
        self._sweep()
        if (log := self._open.get(stream_id)) is not None:
            return log
        if (closed := self._retained.get(stream_id)) is not None:
            return closed.log
        if (closed := self._folded.get(stream_id)) is not None:
            self._folded.move_to_end(stream_id)
            return closed.log
        raise unknown_stream(stream_id)

    def discard(self, stream_id: str) -> None:
        """Drop a log, open or closed. Its readers can still read its events. An unknown id has no effect."""
        self._open.pop(stream_id, None)
        self._opened.pop(stream_id, None)
        for entries in (self._retained, self._folded):
            if (closed := entries.pop(stream_id, None)) is not None:
                self._closed_bytes -= closed.bytes

    def forget_session(self, session_id: str) -> None:
        """Drop all closed logs of a deleted session."""
        for log in self._logs():
            if log.closed and log.session_id == session_id:
                self.discard(log.stream_id)

    def __contains__(self, stream_id: object) -> bool:
        """Whether `attach` would find the stream."""
        return stream_id in self._open or stream_id in self._retained or stream_id in self._folded

    def streams(self) -> tuple[StreamInfo, ...]:
        """A snapshot of each stream: open ones by their start, then closed ones by their end."""
        self._sweep()
        return (
            *(_info(log, "open", self._opened[each]) for each, log in self._open.items()),
            *(_info(each.log, "kept", each.opened, each.ended_us) for each in self._retained.values()),
            *(_info(each.log, "folded", each.opened, each.ended_us) for each in self._folded.values()),
        )

    def statistics(self) -> StreamChannelStatistics:
        """A snapshot of the channel."""
        self._sweep()
        readers = [reader for log in self._logs() for reader in log.readers]
        return StreamChannelStatistics(
            open=len(self._open),
            kept=len(self._retained),
            folded=len(self._folded),
            evicted=self._evicted,
            closed_bytes=self._closed_bytes,
            readers=len(readers),
            max_lag=max((reader.lag for reader in readers), default=0),
        )

    def _logs(self) -> list[StreamLog[TurnEvent]]:
        closed = [*self._retained.values(), *self._folded.values()]
        return [*self._open.values(), *(entry.log for entry in closed)]

    def _closed(self, log: StreamLog[TurnEvent]) -> None:
        if self._open.pop(log.stream_id, None) is None:
            return  # the log was discarded
        opened = self._opened.pop(log.stream_id)
        self._retained[log.stream_id] = _Closed(
            log, self._clock.monotonic_ns(), log.size, opened, self._clock.now_us()
        )
        self._closed_bytes += log.size
        self._sweep()

    def _sweep(self) -> None:
        """Fold the expired logs. Then make room: fold early, then evict."""
        due = self._clock.monotonic_ns() - self._retain_ns
        while self._retained:
            oldest = next(iter(self._retained.values()))
            if oldest.closed_ns > due and self._closed_bytes <= self._max_bytes:
                break
            self._fold(oldest)
        while self._folded and self._closed_bytes > self._max_bytes:
            _, evicted = self._folded.popitem(last=False)
            self._closed_bytes -= evicted.bytes
            self._evicted += 1

    def _fold(self, closed: _Closed) -> None:
        log = closed.log
        del self._retained[log.stream_id]
        self._folded[log.stream_id] = closed
        log.fold()
        self._closed_bytes += log.size - closed.bytes
        closed.bytes = log.size


def unknown_stream(stream_id: str) -> UnknownStream:
    """The error for a missing stream and for another owner's stream.

    Both cases get the same text, so it does not reveal whether another owner's stream exists.
    """
    return UnknownStream(
        f"no stream {stream_id!r}: it was never opened here, or it ended too long ago. Read the finished "
        f"message from its session instead"
    )


def _info(
    log: StreamLog[TurnEvent],
    state: Literal["open", "kept", "folded"],
    opened: _Opened,
    ended_us: int | None = None,
) -> StreamInfo:
    readers = tuple(reader.statistics() for reader in log.readers)
    return StreamInfo(
        log.stream_id,
        state,
        log.next_seq,
        log.size,
        readers,
        session_id=opened.session_id,
        model=opened.model,
        began_us=opened.began_us,
        ended_us=ended_us,
    )

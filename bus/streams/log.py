"""One stream: an append-only log with one producer, and a cursor for each reader.

    seq:   0 .......... base ............ next_seq
           [ snapshot ) [ events .......)

Readers have no queues. So nothing is copied or dropped, and the producer's cost does not depend on the number of
readers. Events are numbered from 0. A reader takes at most 256 at a time and yields to other tasks between two
batches. Memory is bounded: the oldest events are folded into `snapshot`, which has the same content as all events
before `base`. A reader with a cursor before `base` gets one `StreamReset` with that snapshot, then continues from
`base`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar, cast
from weakref import ref

import anyio
import anyio.lowlevel
import msgspec

from ..backend import Notice, Signal, new_signal
from ..log import Log
from . import events as stream_fold

_log = Log("bus.stream")

T = TypeVar("T")

Unfold: TypeAlias = Callable[[Sequence[T]], Iterable[T]]
"""A function that converts a snapshot into events for a new reader."""

READ_BATCH = 256
FOLD_ABOVE_BYTES = 8 * 1024 * 1024
_WEIGH_EVERY = 512


class StreamReset(msgspec.Struct, Generic[T], frozen=True, tag="stream.reset"):
    """A snapshot for a reader whose position is before the unfolded part of the log.

    The reader must discard all events that it has read, and use `snapshot` instead.
    """

    snapshot: tuple[T, ...]
    """Events with the same content as all events before `next_seq`.

    The deltas of a block are joined. A finished message has only its MessageStart and its MessageComplete.
    """
    next_seq: int
    """The seq of the next event."""
    type: ClassVar[str] = "stream.reset"


class ReaderStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a reader."""

    seq: int
    """The seq of the last event read; -1 before the first."""
    lag: int
    """The number of events that were appended and not yet read."""
    delivered: int
    """The number of events returned. A merged event is one event."""
    resets: int
    """The number of times that the reader got a StreamReset in place of events."""


class StreamLog(Generic[T]):
    """The log of one stream: a single message or a whole turn. Use a log in one thread only.

    Args:
        stream_id: The id of the stream; the prefix of each frame's id.
        on_close: A function that is called once, when the log is closed.
        owner: The owner that a reader must name to `StreamChannel.attach`; None without one.
        session_id: The session of the turn; empty without one.
    """

    def __init__(
        self,
        stream_id: str,
        *,
        on_close: Callable[[StreamLog[T]], None] | None = None,
        owner: str | None = None,
        session_id: str = "",
    ) -> None:
        self.stream_id = stream_id
        self.owner = owner
        self.session_id = session_id
        self._on_close = on_close
        self._events: list[T] = []
        self._base = 0
        self._snapshot: tuple[T, ...] = ()
        self._snapshot_bytes = 0
        self._bytes = 0
        self._weighed = 0
        self._weigh_at = _WEIGH_EVERY
        self._signal: Signal | None = None
        self._closed = False
        self._error: Exception | None = None
        self._readers: list[ref[StreamReader[T]]] = []  # a list, because a WeakSet takes a kilobyte
        self._look_at = 8

    def append(self, event: T) -> int:
        """Add an event without waiting.

        Returns:
            The seq of the event.

        Raises:
            anyio.ClosedResourceError: The log is closed.
        """
        if self._closed:
            raise anyio.ClosedResourceError(f"stream {self.stream_id} is closed")
        events = self._events
        events.append(event)
        if self._signal is not None:
            self._wake()
        if len(events) >= self._weigh_at:
            self._weigh()
            if self._bytes > FOLD_ABOVE_BYTES:
                self._fold_oldest()
        return self._base + len(events) - 1

    def extend(self, events: Sequence[T]) -> None:
        """Append several events.

        Raises:
            anyio.ClosedResourceError: The log is closed.
        """
        if self._closed:
            raise anyio.ClosedResourceError(f"stream {self.stream_id} is closed")
        self._events.extend(events)
        if self._signal is not None:
            self._wake()
        if len(self._events) >= self._weigh_at:
            self._weigh()
            if self._bytes > FOLD_ABOVE_BYTES:
                self._fold_oldest()

    def jump(self, snapshot: Iterable[T], next_seq: int) -> None:
        """Continue from a snapshot, because events up to the snapshot are unavailable. Readers before `next_seq`
        get a StreamReset.

        Args:
            snapshot: Events with the same content as all events before `next_seq`, including those already in the
                log.
            next_seq: The seq of the next event.

        Raises:
            anyio.ClosedResourceError: The log is closed.
            ValueError: The log has reached `next_seq` already.
        """
        if self._closed:
            raise anyio.ClosedResourceError(f"stream {self.stream_id} is closed")
        if next_seq <= self.next_seq:
            raise ValueError(
                f"stream {self.stream_id} has already reached {self.next_seq}; it can't start at {next_seq}"
            )
        self._snapshot = tuple(snapshot)
        self._snapshot_bytes = stream_fold.weigh_all(self._snapshot)
        self._events.clear()
        self._base = next_seq
        self._bytes, self._weighed = 0, 0
        self._weigh()
        self._wake()

    def close(self, error: Exception | None = None) -> None:
        """End the log. Readers end when they have read everything. A second call does nothing.

        Args:
            error: An exception that each reader raises after the last event.
        """
        if not self._closed:
            self._closed = True
            self._error = error
            self._weigh()
            self._wake()
            if self._on_close is not None:
                self._on_close(self)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @property
    def error(self) -> Exception | None:
        """The exception that the log was closed with."""
        return self._error

    @property
    def next_seq(self) -> int:
        """The seq of the next event, which equals the number of events in the log."""
        return self._base + len(self._events)

    @property
    def first_seq(self) -> int:
        """The seq of the oldest event that is not folded; earlier events are in `snapshot`."""
        return self._base

    @property
    def size(self) -> int:
        """The approximate memory of the log, in bytes.

        While the log is open, the number may omit the last 512 events.
        """
        return self._bytes + self._snapshot_bytes

    @property
    def folded(self) -> bool:
        """True when only the snapshot is left."""
        return self._closed and not self._events and self._base > 0

    @property
    def snapshot(self) -> tuple[T, ...]:
        """Events with the same content as all folded events."""
        return self._snapshot

    @property
    def readers(self) -> tuple[StreamReader[T], ...]:
        """The readers that are attached."""
        return tuple(reader for entry in self._readers if (reader := entry()) is not None)

    def reader(
        self,
        from_seq: int | Literal["tail"] = 0,
        *,
        coalesce: bool = False,
        min_interval: float = 0.0,
        unfold: Unfold[T] | None = None,
    ) -> StreamReader[T]:
        """Attach a new reader.

        Args:
            from_seq: The seq of the first event to read; 0 for all events, ``"tail"`` for later events only.
            coalesce: Whether to merge adjacent text or thinking deltas of one block, up to 16 KiB, when they are
                read together.
            min_interval: Seconds from one batch of events to the next, so that a display is not redrawn for each
                token. The first batch and older events are not delayed.
            unfold: A function that makes the events for a new reader in place of a StreamReset.

        Raises:
            ValueError: `from_seq` is negative or after the end.
        """
        start = self.next_seq if from_seq == "tail" else from_seq
        if not 0 <= start <= self.next_seq:
            raise ValueError(f"stream {self.stream_id} has events 0 to {self.next_seq - 1}; from_seq={from_seq}")
        return StreamReader(self, start, coalesce=coalesce, min_interval=min_interval, unfold=unfold)

    def since(self, seq: int) -> list[T]:
        """The events from `seq` on, without waiting. Folded events are left out."""
        return self._events[max(seq - self._base, 0) :]

    def notify(self, callback: Callable[[], object]) -> None:
        """Call a function once: at the next append, at the close, or when a reader leaves."""
        self._signal = Notice(callback, self._signal)

    def fold(self) -> None:
        """Fold all events into the snapshot. Readers that have not read all of them get a StreamReset."""
        self._fold_until(len(self._events))

    def _enter(self, reader: StreamReader[T]) -> None:
        if len(self._readers) >= self._look_at:  # some readers were dropped without being closed
            self._readers = [entry for entry in self._readers if entry() is not None]
            self._look_at = max(8, 2 * len(self._readers))
        self._readers.append(ref(reader))

    def _leave(self, reader: StreamReader[T]) -> None:
        self._readers = [entry for entry in self._readers if entry() not in (None, reader)]

    def _wake(self) -> None:
        signal, self._signal = self._signal, None
        if signal is not None:
            try:
                signal.set()
            except RuntimeError as error:
                # A reader's event loop has ended while the reader waited. The producer must not fail because of
                # it.
                _log.warning("stream.reader_gone", stream_id=self.stream_id, error=str(error))

    async def _changed(self) -> None:
        """Wait until an event is appended, the log is closed, or a reader leaves."""
        if self._signal is None:
            self._signal = new_signal()
        await self._signal.wait()

    def _weigh(self) -> None:
        events = self._events
        self._bytes += stream_fold.weigh_all(events[self._weighed :])
        self._weighed = len(events)
        self._weigh_at = self._weighed + _WEIGH_EVERY

    def _fold_oldest(self) -> None:
        """Fold until half of the limit is free, so that folding happens once per 4 MiB and not at each event."""
        surplus = self._bytes - FOLD_ABOVE_BYTES // 2
        cut = 0
        while surplus > 0 and cut < len(self._events):
            surplus -= stream_fold.weigh(self._events[cut])
            cut += 1
        self._fold_until(cut)

    def _fold_until(self, cut: int) -> None:
        if cut == 0:
            return
        # the cast is safe: fold() returns only events of the types that it gets
        self._snapshot = cast("tuple[T, ...]", stream_fold.fold((*self._snapshot, *self._events[:cut])))
        self._snapshot_bytes = stream_fold.weigh_all(self._snapshot)
        del self._events[:cut]
        self._base += cut
        self._bytes, self._weighed = 0, 0
        self._weigh()


class StreamReader(Generic[T]):
    """A cursor over a log: an async iterator of its events, made by `StreamLog.reader`.

    The iteration ends when the log is closed and all its events are read. A slow reader delays no other reader. A
    cancelled reader loses no event.

    Args:
        log: The log to read.
        start: The seq of the first event to read.
        coalesce: As for `StreamLog.reader`.
        min_interval: As for `StreamLog.reader`, in seconds.
        unfold: As for `StreamLog.reader`.
    """

    def __init__(
        self, log: StreamLog[T], start: int, *, coalesce: bool, min_interval: float, unfold: Unfold[T] | None
    ) -> None:
        self.stream_id = log.stream_id
        """The id of the stream."""
        self.seq = start - 1
        """The seq of the last event read (of the last part of a merged event); -1 before the first.

        To continue after it, attach with ``from_seq=reader.seq + 1``.
        """
        self._log = log
        self._cursor = start
        self._coalesce = coalesce
        self._min_interval = min_interval
        self._unfold = unfold
        self._batch: Sequence[T | StreamReset[T]] = ()
        self._seqs: Sequence[int] = ()
        self._index = 0
        self._taken_at: float | None = None
        self._delivered = 0
        self._resets = 0
        self._closed = False
        log._enter(self)

    @property
    def frame_id(self) -> str:
        """``<stream_id>:<seq>`` of the last event read. A client sends it back to continue after that event."""
        return f"{self.stream_id}:{self.seq}"

    def __aiter__(self) -> StreamReader[T]:
        return self

    async def __anext__(self) -> T | StreamReset[T]:
        index = self._index
        if index >= len(self._batch):
            await self._refill()
            index = 0
        self._index = index + 1
        self.seq = self._seqs[index]
        return self._batch[index]

    async def take(self) -> Sequence[T | StreamReset[T]]:
        """Wait for events, and return up to one batch.

        Returns:
            At least one event; an empty list when the log is closed and all events are read.
        """
        if self._index >= len(self._batch):
            try:
                await self._refill()
            except StopAsyncIteration:
                return ()
        events = self._batch[self._index :] if self._index else self._batch
        self._index, self.seq = len(self._batch), self._seqs[-1]
        return events

    async def _refill(self) -> None:
        """Get the next batch, or raise StopAsyncIteration. No event is taken before the last await."""
        log = self._log
        waited = await self._pace()
        while not self._closed and self._cursor >= log.next_seq:
            if log.closed:
                self.close()
                if log.error is not None:
                    raise log.error
                break
            await log._changed()
            waited = True
        if not waited and self._delivered and not self._closed:
            await anyio.lowlevel.checkpoint()
        if self._closed:
            raise StopAsyncIteration
        if self._min_interval:
            self._taken_at = anyio.current_time()
        self._take()

    async def _pace(self) -> bool:
        if self._taken_at is None or self._log.next_seq - self._cursor >= READ_BATCH:
            return False
        rest = self._taken_at + self._min_interval - anyio.current_time()
        if rest <= 0:
            return False
        await anyio.sleep(rest)
        return True

    def _take(self) -> None:
        log = self._log
        self._index = 0
        if self._cursor < log._base:
            self._take_snapshot(log)
        else:
            start = self._cursor - log._base
            events = log._events[start : start + READ_BATCH]
            first, self._cursor = self._cursor, self._cursor + len(events)
            if self._coalesce:
                merged, self._seqs = stream_fold.coalesce(events, first)
                self._batch = cast("list[T]", merged)  # the cast is safe: a merged delta has the type of its parts
            else:
                self._batch, self._seqs = events, range(first, self._cursor)
        self._delivered += len(self._batch)

    def _take_snapshot(self, log: StreamLog[T]) -> None:
        if self._unfold is not None and self._cursor == 0:
            self._batch = tuple(self._unfold(log._snapshot))
            # Only the last event gets the seq of the snapshot's end. A reader that reconnects after an earlier one
            # gets a StreamReset.
            earlier = (min(index, log._base - 2) for index in range(len(self._batch) - 1))
            self._seqs = (*earlier, log._base - 1)
        else:
            self._batch = (StreamReset(log._snapshot, log._base),)
            self._seqs = (log._base - 1,)
            self._resets += 1
        self._cursor = log._base

    def close(self) -> None:
        """Detach from the log and discard unread events. A task that waits for events returns."""
        if not self._closed:
            self._closed = True
            self._batch, self._seqs, self._index = (), (), 0
            self._log._leave(self)
            self._log._wake()

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    async def __aenter__(self) -> StreamReader[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def lag(self) -> int:
        """The number of events that were appended and are not read yet."""
        return self._log.next_seq - 1 - self.seq

    def statistics(self) -> ReaderStatistics:
        """A snapshot of the reader's progress."""
        return ReaderStatistics(
            seq=self.seq,
            lag=self.lag,
            delivered=self._delivered,
            resets=self._resets,
        )

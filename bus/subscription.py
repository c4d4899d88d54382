"""Subscriptions: one reader's bounded view of the bus.

    Lossless     keeps everything, without a bound, so admission must check `depth` and `oldest_age_ms`.
    DropOldest   keeps the newest `capacity`. A `Gap` reports dropped events before the next one.
    Latest       keeps the newest for each key. Replaced events are not lost. A `Gap` reports a dropped key.

The bus puts an envelope into a buffer with a plain call. The sequence numbers that a reader sees strictly
increase. The oldest event is dropped first, so one gap at the head of the buffer covers all drops. A waiting
reader registers one signal, which the next envelope sets. For a busy reader, publishing is one append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Protocol, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from .backend import Signal, new_signal
from .events.envelope import Envelope, Event
from .log import Log

_log = Log("bus.subscription")

READ_BURST = 256
"""The number of events after which a busy reader yields to other tasks."""


class Gap(Event, frozen=True, kw_only=True, tag="bus.gap"):
    """Events that this subscription dropped.

    A gap is delivered before the next event, in an envelope with `last` as its `seq`. It is not published: only
    the subscription that dropped the events gets it. Other events between `first` and `last` did not match the
    subscription.
    """

    first: int
    """The seq of the first event that was dropped."""
    last: int
    """The seq of the last event that was dropped."""
    count: int
    """The number of events that were dropped."""


class Lossless(msgspec.Struct, frozen=True):
    """Keep all events until they are read.

    Use it only for readers that must not lose events. The buffer has no limit, so check its `depth`.
    """


class DropOldest(msgspec.Struct, frozen=True):
    """Keep the newest events, and report dropped ones with a `Gap` among the events.

    Raises:
        ValueError: The capacity is below 1.
    """

    capacity: int = 1024
    """The largest number of events that wait."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"DropOldest(capacity={self.capacity}): must be at least 1")


class Latest(msgspec.Struct, frozen=True):
    """Keep the newest event for each key. An older event of the same key is not a loss and makes no `Gap`.

    Raises:
        ValueError: The capacity is below 1.
    """

    key: Callable[[Envelope], Hashable]
    """A pure function. It is called for every event, so it must be fast. If the function raises, the event gets a
    unique key.
    """
    capacity: int = 1024
    """The largest number of keys."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"Latest(capacity={self.capacity}): must be at least 1")


Policy: TypeAlias = Lossless | DropOldest | Latest
"""How a subscription handles a slow reader."""


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a subscription."""

    name: str
    """The subscription's name; defaults to `created_at`."""
    patterns: tuple[str, ...]
    """The patterns of the subscription."""
    policy: str
    """The name of the policy's class."""
    depth: int
    """The number of events that wait."""
    oldest_age_ms: float
    """Milliseconds that the oldest event has waited; 0.0 if none waits."""
    delivered: int
    """The number of delivered events."""
    dropped: int
    """The number of dropped events."""
    created_at: str
    """``file:line`` of the call of `subscribe`."""


class _Buffer(Protocol):
    dropped: int

    def push(self, envelope: Envelope, /) -> None: ...
    def pop(self) -> Envelope: ...
    def oldest(self) -> Envelope | None: ...
    def __len__(self) -> int: ...


class _LosslessBuffer(deque[Envelope]):
    """An unbounded queue. It subclasses deque, because its length is read several times for each event."""

    dropped = 0
    push = deque.append
    pop = deque.popleft  # the oldest, as from any buffer

    def oldest(self) -> Envelope | None:
        return self[0] if self else None


class _DroppingBuffer:
    """Base of the two buffers that drop events. It records the gap at the head."""

    def __init__(self) -> None:
        self.dropped = 0
        self._gap_first = 0
        self._gap_count = 0
        self._gap_last: Envelope | None = None

    def _drop(self, envelope: Envelope) -> None:
        if self._gap_last is None:
            self._gap_first = envelope.seq
        self._gap_last = envelope
        self._gap_count += 1
        self.dropped += 1

    def _pop_gap(self) -> Envelope | None:
        last = self._gap_last
        if last is None:
            return None
        gap = Gap(first=self._gap_first, last=last.seq, count=self._gap_count)
        self._gap_last, self._gap_count = None, 0
        return Envelope(last.seq, last.run_id, last.ts_us, last.mono_ns, gap)


class _LatestBuffer(_DroppingBuffer):
    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._items: deque[Envelope] = deque()

    def push(self, envelope: Envelope) -> None:
        items = self._items
        if len(items) >= self._capacity:
            self._drop(items.popleft())
        items.append(envelope)

    def pop(self) -> Envelope:
        return self._pop_gap() or self._items.popleft()

    def oldest(self) -> Envelope | None:
        return self._items[0] if self._items else None

    def __len__(self) -> int:
        return len(self._items)


class _NewestPerKey(_DroppingBuffer):
    def __init__(self, policy: Latest) -> None:
        super().__init__()
        self._policy = policy
        self._items: dict[Hashable, Envelope] = {}

    def push(self, envelope: Envelope) -> None:
        items = self._items
        try:
            key = self._policy.key(envelope)
            items.pop(key, None)  # remove first, because a dict keeps the old position of a key that is set again
        except Exception as error:
            _log.warning("bus.key_failed", error, seq=envelope.seq, topic=envelope.topic, error=repr(error))
            key = (_NewestPerKey, envelope.seq)
        if len(items) >= self._policy.capacity:
            self._drop(items.pop(next(iter(items))))
        items[key] = envelope

    def pop(self) -> Envelope:
        return self._pop_gap() or self._items.pop(next(iter(self._items)))

    def oldest(self) -> Envelope | None:
        return next(iter(self._items.values()), None)

    def __len__(self) -> int:
        return len(self._items)


def _buffer(policy: Policy) -> _Buffer:
    match policy:
        case Lossless():
            return _LosslessBuffer()
        case DropOldest(capacity):
            return _LatestBuffer(capacity)
        case Latest():
            return _NewestPerKey(policy)


class Subscription:
    """A reader's view of a bus, made by `Bus.subscribe`. Read it with ``async for``, or with `take` and `wait`.

    As a context manager, ``with`` or ``async with``, the subscription closes itself. Reading never fails, and
    loses no event that the policy keeps, even if a waiting reader is cancelled. Several tasks may read one
    subscription; each event then goes to one of them. Iteration ends when the subscription or the bus is closed
    and every waiting event has been read.
    """

    def __init__(
        self,
        patterns: tuple[str, ...],
        policy: Policy,
        name: str,
        created_at: str,
        now_ns: Callable[[], int],
        detach: Callable[[Subscription], None],
    ) -> None:
        self.name = name
        self.patterns = patterns
        self.without: tuple[str, ...] = ()
        self.policy = policy
        self.created_at = created_at
        self._now_ns = now_ns
        self._detach = detach
        self._buffer = _buffer(policy)
        self._push = self._buffer.push
        self._waiter: Signal | None = None
        self._closed = False
        self._delivered = 0
        self._burst = 0

    @property
    def closed(self) -> bool:
        """True after `close`. Waiting events can still be read."""
        return self._closed

    @property
    def depth(self) -> int:
        """The number of events that wait."""
        return len(self._buffer)

    @property
    def oldest_age_ms(self) -> float:
        """Milliseconds that the oldest event has waited; 0.0 if none waits."""
        oldest = self._buffer.oldest()
        return 0.0 if oldest is None else (self._now_ns() - oldest.mono_ns) / 1e6

    def take(self, limit: int | None = None) -> list[Envelope]:
        """The oldest events that wait.

        Args:
            limit: The largest number of events to take; None for all.

        Returns:
            The events; an empty list if nothing waits.
        """
        buffer = self._buffer
        envelopes: list[Envelope] = []
        if isinstance(buffer, _LosslessBuffer) and (limit is None or len(buffer) <= limit):
            envelopes = list(buffer)
            buffer.clear()
        while buffer and len(envelopes) != limit:
            envelopes.append(buffer.pop())
        self._delivered += len(envelopes)
        return envelopes

    async def wait(self) -> None:
        """Wait until an event has arrived, or the subscription is closed. The event is not taken, and another task
        may take it first.
        """
        if self._buffer or self._closed:
            await anyio.lowlevel.checkpoint()
            return
        if self._waiter is None:
            self._waiter = new_signal()
        await self._waiter.wait()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Envelope:
        while True:
            if not self._buffer:
                if self._closed:
                    raise StopAsyncIteration
                self._burst = 0
                await self.wait()
            elif self._burst >= READ_BURST:
                self._burst = 0
                await anyio.lowlevel.checkpoint()
            else:
                self._burst += 1
                self._delivered += 1
                return self._buffer.pop()

    def close(self) -> None:
        """Stop receiving. Waiting events can still be read, and a waiting reader returns. A second call does
        nothing.
        """
        if not self._closed:
            self._closed = True
            self._detach(self)
            if self._waiter is not None:
                self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            try:
                waiter.set()
            except RuntimeError as error:
                # The reader's event loop has ended while the reader waited, so there is no task to wake.
                _log.warning(
                    "bus.reader_gone", subscription=self.name, created_at=self.created_at, error=str(error)
                )

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> SubscriptionStatistics:
        """A snapshot of the events that wait, were delivered and were dropped."""
        return SubscriptionStatistics(
            name=self.name,
            patterns=self.patterns,
            policy=type(self.policy).__name__,
            depth=self.depth,
            oldest_age_ms=self.oldest_age_ms,
            delivered=self._delivered,
            dropped=self._buffer.dropped,
            created_at=self.created_at,
        )

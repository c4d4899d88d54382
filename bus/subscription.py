"""A subscription: one reader's bounded view of the bus.

The bus puts an envelope in with a plain call; the reader takes it out in its own time. Between the two stands a
buffer, and the policy says what the buffer does when the reader is slow:

    Lossless     keeps everything. Nothing here bounds it: whoever admits new work must look at `depth` and
                 `oldest_age_ms`, because a publisher is never made to wait.
    DropOldest   keeps the newest `capacity`. What was dropped is told in-band: a `Gap` before the next event.
    Latest       keeps the newest per key. Superseded events are no loss; a key that had to go is a `Gap`.

Whatever the policy, the sequence numbers that a reader sees strictly increase. A drop always takes the oldest, so
the dropped numbers are smaller than everything that waits, and one gap at the head of the buffer says it all.

A reader that waits has left one signal; the next envelope sets it and forgets it. A reader that is busy has
left none, and costs the publisher one append.
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
from .events.catalogue import Envelope, Event
from .log import Log

_log = Log("bus.subscription")

READ_BURST = 256
"""A reader that always finds something lets others run after so many events."""


class Gap(Event, frozen=True, kw_only=True, tag="bus.gap"):
    """Events that this subscription dropped: `count` of them, from seq `first` to seq `last`.

    Comes in an envelope whose `seq` is `last`, before the next event. Only ever seen by the subscription that
    dropped; it is not published, and other events between `first` and `last` were not for this subscription.
    """

    first: int
    last: int
    count: int


class Lossless(msgspec.Struct, frozen=True):
    """Keep everything until it is read. For the few who may lose nothing and are watched by admission."""


class DropOldest(msgspec.Struct, frozen=True):
    """Keep the newest `capacity` events, and say in-band, by a `Gap`, what was dropped.

    Raises ValueError for a capacity below 1.
    """

    capacity: int = 1024

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"DropOldest(capacity={self.capacity}): must be at least 1")


class Latest(msgspec.Struct, frozen=True):
    """Keep the newest event per key, for at most `capacity` keys; what is superseded is no loss, and no `Gap`.

    key: a quick pure function. An event for which it raises is kept under a key of its own.
    Raises ValueError for a capacity below 1.
    """

    key: Callable[[Envelope], Hashable]
    capacity: int = 1024

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"Latest(capacity={self.capacity}): must be at least 1")


Policy: TypeAlias = Lossless | DropOldest | Latest
"""What a subscription does about a reader that is slower than the events."""


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a subscription. depth: events that wait. oldest_age_ms: for how many milliseconds the first of
    them has waited; 0.0 if none does. delivered, dropped: events so far.

    name: as given, or else created_at: ``file:line`` of the call of `subscribe`.
    """

    name: str
    patterns: tuple[str, ...]
    policy: str
    depth: int
    oldest_age_ms: float
    delivered: int
    dropped: int
    created_at: str


class _Buffer(Protocol):
    dropped: int

    def push(self, envelope: Envelope, /) -> None: ...
    def pop(self) -> Envelope: ...
    def oldest(self) -> Envelope | None: ...
    def __len__(self) -> int: ...


class _Everything:
    def __init__(self) -> None:
        self._items: deque[Envelope] = deque()
        self.dropped = 0
        self.push: Callable[[Envelope], None] = self._items.append
        self.pop: Callable[[], Envelope] = self._items.popleft

    def oldest(self) -> Envelope | None:
        return self._items[0] if self._items else None

    def __len__(self) -> int:
        return len(self._items)


class _Losing:
    """What the two dropping buffers share: the gap that waits at their head."""

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


class _Newest(_Losing):
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


class _NewestPerKey(_Losing):
    def __init__(self, policy: Latest) -> None:
        super().__init__()
        self._policy = policy
        self._items: dict[Hashable, Envelope] = {}

    def push(self, envelope: Envelope) -> None:
        items = self._items
        try:
            key = self._policy.key(envelope)
            items.pop(key, None)  # a dict keeps the place of a key that is set again; we want it at the end
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
            return _Everything()
        case DropOldest(capacity):
            return _Newest(capacity)
        case Latest():
            return _NewestPerKey(policy)


class Subscription:
    """What `Bus.subscribe` returns: read it with ``async for``, or with `take` and `wait`.

    As a context manager, ``with`` or ``async with``, it closes itself. Reading never fails and never loses what
    the policy keeps, not even when the reader is cancelled while it waits. Several tasks may read one
    subscription; each event then goes to one of them. Iteration ends when the subscription or the bus is closed
    and everything that waited has been read.
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
        """True when nothing more will come; what waits can still be read."""
        return self._closed

    @property
    def depth(self) -> int:
        """How many events wait."""
        return len(self._buffer)

    @property
    def oldest_age_ms(self) -> float:
        """For how long the oldest event has waited, in milliseconds; 0.0 if none waits."""
        oldest = self._buffer.oldest()
        return 0.0 if oldest is None else (self._now_ns() - oldest.mono_ns) / 1e6

    def take(self, limit: int | None = None) -> list[Envelope]:
        """The oldest events that wait, at most `limit`; None is all. An empty list if nothing waits."""
        buffer = self._buffer
        taken: list[Envelope] = []
        while buffer and len(taken) != limit:
            taken.append(buffer.pop())
        self._delivered += len(taken)
        return taken

    async def wait(self) -> None:
        """Return when something has come, or when the subscription is closed. Takes nothing itself.

        By then somebody else may have taken it.
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
        """Stop receiving. What waits can still be read; a reader that waits is let go. Idempotent."""
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
                # The reader's event loop has ended while it waited; nobody is there to be woken.
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
        """A snapshot of what waits, what was delivered and what was dropped."""
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

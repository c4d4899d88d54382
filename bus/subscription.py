"""`Subscription`, one reader's bounded view of a bus, and `ObservableBus`, the base of a bus.

    Lossless     keeps everything, without a bound, so admission must check `depth` and `oldest_age_ms`.
    DropOldest   keeps the newest `capacity`. A `Gap` reports dropped events before the next one.
    Latest       keeps the newest for each key. Replaced events are not lost. A `Gap` reports a dropped key.

The bus puts an envelope into a buffer with a plain call. The sequence numbers that a reader sees strictly
increase. The oldest event is dropped first, so one gap at the head of the buffer covers all drops. A waiting
reader registers one signal, which the next envelope sets. For a busy reader, publishing is one append.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Collection, Hashable
from threading import get_ident
from typing import TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from .backend import Signal, new_signal
from .clock import Clock
from .errors import WrongLoop
from .events import Envelope, Event
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


class _NewestBuffer(_DroppingBuffer):
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


def _buffer(policy: Policy) -> _LosslessBuffer | _NewestBuffer | _NewestPerKey:
    match policy:
        case Lossless():
            return _LosslessBuffer()
        case DropOldest(capacity):
            return _NewestBuffer(capacity)
        case Latest():
            return _NewestPerKey(policy)


# --- The subscription ---


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

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
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


# --- The base of a bus ---

Schedule: TypeAlias = Callable[[Callable[[], object]], object]

_DEFAULT_POLICY = DropOldest()


class BusStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a bus."""

    run_id: str
    """The id of the bus."""
    published: int
    """The number of published events, which is also the last seq."""
    after_close: int
    """The number of events that were published after `close` and not delivered."""
    dead_letters: int
    """The number of messages to actors that had stopped or had a full mailbox."""
    subscriptions: tuple[SubscriptionStatistics, ...]
    """A snapshot of each subscription."""


class ObservableBus:
    """The base of `Bus` and `ReplayBus`. Code that only subscribes accepts either.

    Args:
        run_id: The id in the events' envelopes.
        clock: The clock of the events' times.
    """

    def __init__(self, run_id: str, clock: Clock) -> None:
        self.run_id = run_id
        self.clock = clock
        self._now_ns = clock.monotonic_ns
        self._seq = 0
        self._subscriptions: list[Subscription] = []
        self._thread: int | None = None
        self._schedule: Schedule | None = None
        self._closed_at: int | None = None

    def subscribe(
        self,
        *patterns: str,
        policy: Policy = _DEFAULT_POLICY,
        name: str = "",
        without: Collection[str] = (),
    ) -> Subscription:
        """Receive every later event with a topic that matches one of the patterns.

        Close the subscription, or use it as a context manager: the bus keeps a reference to it until then. On a
        closed bus, the new subscription is already closed.

        Args:
            patterns: A topic (``llm.call_started``); ``*`` for any one token (``llm.*``); ``>`` at the end for one
                or more (``llm.>``, or ``>`` for everything). An event that several patterns match is delivered
                once.
            policy: The behaviour when the reader is slow; defaults to `DropOldest(1024)`.
            name: A name for statistics; defaults to the file and line of this call.
            without: Patterns of topics to exclude.

        Raises:
            ValueError: There is no pattern, or a pattern can't match any topic.
            WrongLoop: The bus belongs to another thread.
        """
        self.check_thread()
        if not patterns:
            raise ValueError("subscribe() needs a pattern; '>' matches every topic")
        for pattern in (*patterns, *without):
            check_pattern(pattern)
        caller = sys._getframe(1)
        created_at = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        subscription = self._new_subscription(patterns, policy, name or created_at, created_at)
        subscription.without = tuple(without)
        if self._closed_at is None:
            self._subscriptions.append(subscription)
            self._forget_routes()
        else:
            subscription.close()
        return subscription

    def close(self) -> None:
        """Close every subscription.

        Readers get the waiting events, and then their iteration ends. A second call does nothing.
        """
        if self._closed_at is None:
            self._closed_at = self._seq
            for subscription in tuple(self._subscriptions):
                subscription.close()

    def check_thread(self) -> None:
        """Check that the bus belongs to the calling thread. The first use assigns the bus to its thread.

        Raises:
            WrongLoop: The bus belongs to another thread.
        """
        if self._thread is None:
            self._thread = get_ident()
        elif self._thread != get_ident():
            raise WrongLoop(
                "this bus belongs to another thread. From another thread, call "
                "bus.publish_threadsafe(event) or move the work to the bus's loop (anyio.from_thread.run_sync)"
            )
        if self._schedule is None:
            self._schedule = _schedule_on_this_loop()

    def _new_subscription(
        self, patterns: tuple[str, ...], policy: Policy, name: str, created_at: str
    ) -> Subscription:
        return Subscription(patterns, policy, name, created_at, self._now_ns, self._remove)

    def _subscribers_of(self, topic: str) -> tuple[Subscription, ...]:
        return tuple(
            subscription
            for subscription in self._subscriptions
            if any(topic_matches(pattern, topic) for pattern in subscription.patterns)
            and not any(topic_matches(pattern, topic) for pattern in subscription.without)
        )

    def _remove(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._forget_routes()

    def _forget_routes(self) -> None:
        """Clear the routes, because the subscriptions have changed."""
        raise NotImplementedError


def topic_matches(pattern: str, topic: str) -> bool:
    """Whether a pattern, as `Bus.subscribe` takes it, matches a topic."""
    parts, tokens = pattern.split("."), topic.split(".")
    if parts[-1] == ">":
        head = parts[:-1]
        if len(tokens) <= len(head):
            return False
        tokens = tokens[: len(head)]
        parts = head
    return len(parts) == len(tokens) and all(
        part in ("*", token) for part, token in zip(parts, tokens, strict=True)
    )


def check_pattern(pattern: str) -> None:
    tokens = pattern.split(".")
    if not all(tokens):
        raise ValueError(f"pattern {pattern!r}: a token between dots must not be empty")
    if ">" in tokens[:-1]:
        raise ValueError(f"pattern {pattern!r}: '>' may only be the last token")
    for token in tokens:
        if len(token) > 1 and ("*" in token or ">" in token):
            raise ValueError(f"pattern {pattern!r}: '*' and '>' replace whole tokens, not a part of one")


def _schedule_on_this_loop() -> Schedule | None:
    """Return a function that other threads can call to run something on this thread's loop; None outside a
    loop.
    """
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        pass
    if "trio" in sys.modules:
        import trio

        try:
            return trio.lowlevel.current_trio_token().run_sync_soon
        except RuntimeError:
            pass
    return None

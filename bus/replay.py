"""Replays of stored events, for code that reads a live bus.

    async with Bus.replay(source) as bus:
        async with bus.subscribe("llm.*") as events:
            async for envelope in events:
                ...

Envelopes of a replay are unchanged: run_id, seq, times, ids. They are in the order of the source, and nothing can
be published. If `WINDOW` events wait for a reader with `Lossless`, the replay waits for that reader. `DropOldest`
and `Latest` drop events instead. All readers regularly get time to run. When the source ends, every subscription
ends.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel

from .clock import Clock
from .events import Envelope
from .subscription import BusStatistics, Lossless, ObservableBus, Policy, Subscription

WINDOW = 1024
"""The largest number of events that wait for one lossless reader."""

_BURST = 128
_ROUTES_KEPT = 1024


class ReplayBus(ObservableBus):
    """A bus that delivers stored envelopes once. `Bus.replay` makes it.

    As an async context manager it replays in a separate task, which starts when a reader waits for events. So
    readers that subscribed before miss no event. Leaving the context ends the replay. If the source raises,
    readers get all earlier events, and then the context raises that exception. `run()` replays in the caller's
    task.

    Waits between events of one run follow the recorded monotonic times. Waits between runs follow the wall times.
    A delayed replay catches up.

    Args:
        source: The envelopes, iterated once.
        speed: The factor on the original speed; None for no waiting.
        longest_pause: The longest wait between two events, in seconds, for histories with idle hours; None for no
            limit.
        clock: The clock of the replay.

    Raises:
        ValueError: The speed is not above 0, or the pause is below 0.
    """

    def __init__(
        self,
        source: Iterable[Envelope] | AsyncIterable[Envelope],
        *,
        speed: float | None,
        longest_pause: float | None,
        clock: Clock,
    ) -> None:
        if speed is not None and not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed={speed}: must be greater than 0, or None for as fast as possible")
        if longest_pause is not None and not longest_pause >= 0:
            raise ValueError(f"longest_pause={longest_pause}: must be 0 or more seconds")
        super().__init__("replay", clock)
        self._now_ns = lambda: self._mono_ns
        self._source = source
        self._pace = None if speed is None else _Pace(speed, longest_pause)
        self._routes: dict[str, tuple[Subscription, ...]] = {}
        self._delivered = 0
        self._mono_ns = 0
        self._since_turn = 0
        self._ran = False
        self._is_read = False
        self._asked_for: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._failure: Exception | None = None

    @property
    def delivered(self) -> int:
        """The number of events that were replayed, delivered or not."""
        return self._delivered

    @property
    def last_seq(self) -> int:
        """The seq of the latest event in the event's own run; 0 before the first."""
        return self._seq

    async def run(self) -> int:
        """Replay everything, and close the bus. Exceptions of the source are raised here.

        Returns:
            The number of events.

        Raises:
            RuntimeError: The bus was replayed before.
        """
        if self._ran:
            raise RuntimeError("this replay has already run. Create a new one with Bus.replay(source)")
        self._ran = True
        self.check_thread()
        try:
            if isinstance(self._source, AsyncIterable):
                async for envelope in self._source:
                    if self._closed_at is not None:
                        break
                    await self._next(envelope)
            else:
                for envelope in self._source:
                    if self._closed_at is not None:
                        break
                    await self._next(envelope)
        finally:
            self.close()
        return self._delivered

    def statistics(self) -> BusStatistics:
        """A snapshot of the replay and all its subscriptions. Ages are in replayed time."""
        return BusStatistics(
            run_id=self.run_id,
            published=self._delivered,
            after_close=0,
            dead_letters=0,
            subscriptions=tuple(subscription.statistics() for subscription in self._subscriptions),
        )

    async def __aenter__(self) -> Self:
        self.check_thread()
        self._asked_for = anyio.Event()
        if self._is_read:
            self._asked_for.set()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run_when_asked_for)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._group is not None
        self.close()
        self._group.cancel_scope.cancel()
        # The body's exception is not passed, because the group would wrap it.
        await self._group.__aexit__(None, None, None)
        if self._failure is not None and error is None:
            raise self._failure

    async def _run_when_asked_for(self) -> None:
        assert self._asked_for is not None
        await self._asked_for.wait()
        try:
            await self.run()
        except Exception as error:
            self._failure = error

    async def _next(self, envelope: Envelope) -> None:
        if self._pace is not None:
            await self._pace.wait_for(envelope)
        self._since_turn += 1
        if self._since_turn >= self._turn_after():
            self._since_turn = 0
            await anyio.lowlevel.checkpoint()
        topic = envelope.topic
        while any(isinstance(each.policy, Lossless) and each.depth >= WINDOW for each in self._interested(topic)):
            self._room = anyio.Event()
            await self._room.wait()
        if self._closed_at is not None:
            return
        self._delivered += 1
        self._seq, self.run_id, self._mono_ns = envelope.seq, envelope.run_id, envelope.mono_ns
        for subscription in self._interested(topic):
            subscription._push(envelope)
            if subscription._waiter is not None:
                subscription._wake()

    def _interested(self, topic: str) -> tuple[Subscription, ...]:
        found = self._routes.get(topic)
        if found is None:
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            found = self._routes[topic] = self._subscribers_of(topic)
        return found

    def _turn_after(self) -> int:
        """The number of events after which readers get time to run: half the size of the smallest buffer."""
        capacities = (
            each.policy.capacity for each in self._subscriptions if not isinstance(each.policy, Lossless)
        )
        return max(1, min(_BURST, min(capacities, default=_BURST) // 2))

    def _new_subscription(
        self, patterns: tuple[str, ...], policy: Policy, name: str, created_at: str
    ) -> Subscription:
        subscription = _ReplaySubscription(patterns, policy, name, created_at, self._now_ns, self._remove)
        subscription.replay = self
        return subscription

    def _ask(self) -> None:
        self._is_read = True
        if self._asked_for is not None:
            self._asked_for.set()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._make_room()  # room for the events that a closed reader had blocked

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set()


class _ReplaySubscription(Subscription):
    """A subscription that signals the replay when its reader waits or has made room."""

    replay: ReplayBus

    async def wait(self) -> None:
        if not self._buffer:
            self.replay._ask()
        await super().wait()

    def take(self, limit: int | None = None) -> list[Envelope]:
        envelopes = super().take(limit)
        self.replay._ask()
        self.replay._make_room()
        return envelopes

    async def __anext__(self) -> Envelope:
        envelope = await super().__anext__()
        if len(self._buffer) <= WINDOW // 2:
            self.replay._make_room()
        return envelope


class _Pace:
    """The due time of each envelope, on the loop's clock."""

    def __init__(self, speed: float, longest_pause: float | None) -> None:
        self._speed = speed
        self._longest_pause = math.inf if longest_pause is None else longest_pause
        self._began: float | None = None
        self._first_us = 0
        self._runs: dict[str, tuple[int, int]] = {}  # the start and the mono_ns of each run's first event

    async def wait_for(self, envelope: Envelope) -> None:
        now = anyio.current_time()
        if self._began is None:
            self._began, self._first_us = now, envelope.ts_us
        placed = self._runs.get(envelope.run_id)
        if placed is None:
            placed = self._runs[envelope.run_id] = ((envelope.ts_us - self._first_us) * 1000, envelope.mono_ns)
        due = self._began + (placed[0] + envelope.mono_ns - placed[1]) / 1e9 / self._speed
        if due - now > self._longest_pause:
            self._began -= due - now - self._longest_pause
            due = now + self._longest_pause
        if due > now:
            await anyio.sleep_until(due)

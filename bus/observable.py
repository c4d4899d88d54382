"""The readers' side of a bus, shared by live buses and replays."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection
from threading import get_ident
from typing import TypeAlias

import msgspec

from .clock import Clock
from .errors import WrongLoop
from .subscription import DropOldest, Policy, Subscription, SubscriptionStatistics

Schedule: TypeAlias = Callable[[Callable[[], object]], object]

_DEFAULT_POLICY = DropOldest()


class BusStatistics(msgspec.Struct, frozen=True):
    """A snapshot of a bus."""

    run_id: str
    """The id of the bus."""
    published: int
    """The number of events so far, which is also the last seq."""
    after_close: int
    """The number of these events that came after `close` and were not delivered."""
    dead_letters: int
    """The number of messages so far to actors that had stopped or had a full mailbox."""
    subscriptions: tuple[SubscriptionStatistics, ...]
    """A snapshot of each subscription."""


class ObservableBus:
    """The base of `Bus` and `ReplayBus`. Code that only subscribes accepts either.

    Args:
        run_id: The id that the events carry.
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

        Close the subscription, or use it as a context manager: the bus holds it until then. On a closed bus it is
        closed already.

        Args:
            patterns: A topic (``llm.call_started``); ``*`` for any one token (``llm.*``); ``>`` at the end for one
                or more (``llm.>``, or ``>`` for everything). An event that several patterns match comes once.
            policy: The behaviour when the reader is slow; defaults to `DropOldest(1024)`.
            name: A name for statistics; defaults to the file and line of this call.
            without: Patterns of topics to exclude.

        Raises:
            ValueError: There is no pattern, or one that can't match anything.
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

        Readers get the waiting events, and then the end. A second call does nothing.
        """
        if self._closed_at is None:
            self._closed_at = self._seq
            for subscription in tuple(self._subscriptions):
                subscription.close()

    def check_thread(self) -> None:
        """Check that this is the bus's own thread. The first use makes the calling thread the bus's own.

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
    wanted, tokens = pattern.split("."), topic.split(".")
    if wanted[-1] == ">":
        head = wanted[:-1]
        if len(tokens) <= len(head):
            return False
        tokens = tokens[: len(head)]
        wanted = head
    return len(wanted) == len(tokens) and all(
        want in ("*", token) for want, token in zip(wanted, tokens, strict=True)
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
    """A function that schedules calls on this thread's loop from any thread; None outside a loop."""
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

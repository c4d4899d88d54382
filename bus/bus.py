"""The bus: typed events in one order, and a publisher that never waits.

`publish` numbers an event, puts it into the buffer of every matching subscription, and returns. `publish` runs no
code of a reader, so no reader can block it, call it recursively, or make it raise. A slow reader is handled by the
policy of its subscription (see `bus.subscription`).

`seq` counts the calls of `publish` from 1, without a gap. It strictly increases for every reader. Numbers of two
buses can't be compared. A bus belongs to the thread that first used it. It has no lock, so other threads use
`publish_threadsafe`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Iterable
from functools import partial
from threading import get_ident

import msgspec

from .clock import SYSTEM_CLOCK, Clock
from .errors import WrongLoop
from .events import Envelope, Event
from .log import Log, warn_of_old_name
from .replay import ReplayBus
from .subscription import BusStatistics, ObservableBus, Subscription

_log = Log("bus")

_DEAD_LETTERS_KEPT = 1000
_DEAD_LETTERS_LOGGED = 10
_DEAD_LETTERS_SILENCE_NS = 300 * 10**9
_ROUTES_KEPT = 1024


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that was not delivered to an actor. Only its type is kept, because it may contain secrets."""

    recipient: str
    """The actor's name."""
    message_type: str
    """The name of the message's class."""
    reason: str
    """``stopped`` or ``mailbox full``."""
    ts_us: int
    """The time in microseconds since the epoch, UTC."""


class Bus(ObservableBus):
    """An in-process event bus. A bus needs no start and runs no task.

    It belongs to the thread that first uses it.

    Args:
        run_id: The id in every envelope, unique together with `seq`; defaults to an id from the clock.
        clock: The clock of the times in envelopes.
    """

    def __init__(self, *, run_id: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock.new_id("run") if run_id is None else run_id, clock)
        self._now_us = clock.now_us
        self._routes: dict[type[Event], tuple[Subscription, ...]] = {}
        self._dead_letters: deque[DeadLetter] = deque(maxlen=_DEAD_LETTERS_KEPT)
        self._dead_letter_count = 0
        self._dead_letters_logged = 0
        self._dead_letters_silent_until_ns = 0

    @staticmethod
    def replay(
        source: Iterable[Envelope] | AsyncIterable[Envelope],
        *,
        speed: float | None = None,
        longest_pause: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> ReplayBus:
        """Make a bus that delivers stored envelopes again, unchanged and in order.

        Args:
            source: The envelopes.
            speed: The factor on the original speed, as for `ReplayBus`; None for no waiting.
            longest_pause: As for `ReplayBus`: the longest wait between two events, in seconds; None for no limit.
            clock: The clock of the replay.

        Raises:
            ValueError: The speed is not above 0, or the pause is below 0.
        """
        return ReplayBus(source, speed=speed, longest_pause=longest_pause, clock=clock)

    @property
    def last_seq(self) -> int:
        """The seq of the latest event; 0 before the first."""
        return self._seq

    def publish(
        self,
        event: Event,
        *,
        session_id: str | None = None,
        turn_id: str | None = None,
        request_id: str | None = None,
        attempt: int | None = None,
        message_id: str | None = None,
        caused_by: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> int:
        """Publish an event under its type's topic.

        `publish` never waits, and never raises because of a subscriber. Its cost depends only on the number of
        matching subscriptions. On a closed bus the event is counted and not delivered. The keywords are fields of
        the `Envelope`, such as `attempt`, which counts from 1.

        Returns:
            The event's seq.

        Raises:
            WrongLoop: The bus belongs to another thread.
            TypeError: The event has no topic.
        """
        if self._thread != get_ident() or self._schedule is None:
            self.check_thread()
        kind = type(event)
        subscriptions = self._routes.get(kind)
        if subscriptions is None:
            subscriptions = self._route(kind)
        seq = self._seq + 1
        self._seq = seq
        if subscriptions:
            envelope = Envelope(
                seq,
                self.run_id,
                self._now_us(),
                self._now_ns(),
                event,
                session_id,
                turn_id,
                request_id,
                attempt,
                message_id,
                caused_by,
                tags,
            )
            for subscription in subscriptions:
                subscription._push(envelope)
                if subscription._waiter is not None:
                    subscription._wake()
        return seq

    def has_subscribers(self, kind: type[Event]) -> bool:
        """Whether a subscription matches an event of this type."""
        routed = self._routes.get(kind)
        return bool(self._route(kind) if routed is None else routed)

    def is_heard(self, kind: type[Event]) -> bool:
        """Deprecated: use `has_subscribers`."""
        warn_of_old_name("Bus.is_heard() is deprecated: use Bus.has_subscribers()")
        return self.has_subscribers(kind)

    def publish_threadsafe(
        self,
        event: Event,
        *,
        session_id: str | None = None,
        turn_id: str | None = None,
        request_id: str | None = None,
        attempt: int | None = None,
        message_id: str | None = None,
        caused_by: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        """Publish an event from any thread. The bus publishes it soon, on its own thread.

        Events of one thread keep their order.

        The keywords are as for `publish`, such as `attempt`, which counts from 1.

        Raises:
            WrongLoop: The bus was not yet used inside an event loop, or that loop has ended.
        """
        schedule = self._schedule
        if schedule is None:
            raise WrongLoop(
                "publish_threadsafe: this bus has no event loop yet. Publish or subscribe inside the loop first"
            )
        publish = partial(
            self.publish,
            event,
            session_id=session_id,
            turn_id=turn_id,
            request_id=request_id,
            attempt=attempt,
            message_id=message_id,
            caused_by=caused_by,
            tags=tags,
        )
        try:
            schedule(publish)
        except RuntimeError as error:
            raise WrongLoop(f"publish_threadsafe: the event loop of this bus has ended ({error})") from error

    def dead_letter(self, recipient: str, message: object, reason: str) -> None:
        """Record a message that can't be delivered to an actor. The last 1000 messages are kept, and all are
        counted. After ten logged messages, none is logged for five minutes.
        """
        letter = DeadLetter(recipient, type(message).__name__, reason, self._now_us())
        self._dead_letters.append(letter)
        self._dead_letter_count += 1
        now = self._now_ns()
        if self._dead_letters_logged >= _DEAD_LETTERS_LOGGED and now >= self._dead_letters_silent_until_ns:
            self._dead_letters_logged = 0
        if self._dead_letters_logged < _DEAD_LETTERS_LOGGED:
            self._dead_letters_logged += 1
            self._dead_letters_silent_until_ns = now + _DEAD_LETTERS_SILENCE_NS
            _log.warning(
                "bus.dead_letter",
                recipient=recipient,
                message_type=letter.message_type,
                reason=reason,
                total=self._dead_letter_count,
            )

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The latest dead letters, oldest first; at most 1000."""
        return tuple(self._dead_letters)

    def statistics(self) -> BusStatistics:
        """A snapshot of the bus and all its subscriptions."""
        return BusStatistics(
            run_id=self.run_id,
            published=self._seq,
            after_close=0 if self._closed_at is None else self._seq - self._closed_at,
            dead_letters=self._dead_letter_count,
            subscriptions=tuple(subscription.statistics() for subscription in self._subscriptions),
        )

    def _route(self, kind: type[Event]) -> tuple[Subscription, ...]:
        topic = kind.topic_of()
        if len(self._routes) >= _ROUTES_KEPT:
            self._routes.clear()
        subscriptions = self._routes[kind] = self._subscribers_of(topic)
        return subscriptions

    def _forget_routes(self) -> None:
        self._routes.clear()

"""The rate limits of an engine. Each request waits for its turn in a queue. Limits are also learned from the
headers of replies.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import anyio

from callboard.adapters import (
    AdapterError,
    AttemptFailed,
    AttemptFirstEvent,
    AttemptReport,
    AttemptStarted,
    NextAttempt,
    TokenUsage,
)
from callboard.bus.errors import OverloadedError, QuotaExceededError, RateLimitError, RateLimitWaitError

from ..models.entries import AdapterEntry
from .learned_limits import NO_HEADERS, Headers, Ticket
from .rate_slots import LimitObservation, RateLimit, RateLimiter, RateLimitQueue, aged, read_headers

_LONGEST_NAP_SECONDS = 60.0


# --- One queue on an event loop ---


class AsyncRateLimiter:
    """The queue of one adapter and key on an event loop. It wakes admitted requests."""

    def __init__(self, name: str, key: str, limiter: RateLimiter) -> None:
        self.name = name
        self.key = key
        self.limiter = limiter
        self.on_wait: Callable[[], None] | None = None
        """Called when requests wait. None without other nodes."""
        self.on_observation: Callable[[LimitObservation], None] | None = None
        """Called with the limits learned from a reply; None if this key is not shared with other nodes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.unseen: dict[RateLimitLease, None] = {}
        """The calls in progress that were sent before any limit was known."""
        self._events: dict[Ticket, anyio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None

    def now_us(self) -> int:
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.get_running_loop()
        return int(loop.time() * 1e6)

    def known_time_us(self) -> int | None:
        """The time of the event loop in microseconds, even if the loop does not run now; None if no loop has
        run.
        """
        return None if self._loop is None else int(self._loop.time() * 1e6)

    def begin_to_count(self) -> None:
        """Start counting, because a limit is now known. Calls in progress are counted as sent now."""
        unseen, self.unseen = self.unseen, {}
        self.limiter.has_limits = True
        for lease in unseen:
            lease.force()

    def learned(self, model: str, headers: Headers) -> None:
        """Send the limits learned from a reply to other nodes."""
        if self.on_observation is not None:
            account = self.limiter.models[model]
            pause_us = 0 if account.cap is None else max(account.paused_until_us - self.now_us(), 0)
            self.on_observation(LimitObservation(model, headers, pause_us, account.cap is None))

    def learn(self, observation: LimitObservation, observed_us: int) -> None:
        now_us = self.now_us()
        if not self.limiter.has_limits:
            self.begin_to_count()
        if observation.pause_us:
            self.limiter.refused_elsewhere(observation.model, observation.pause_us, now_us)
        if observation.headers.requests is not None or observation.headers.tokens is not None:
            self.limiter.answered_elsewhere(
                observation.model, observation.headers, observed_us, now_us, opens=observation.opens
            )
        self.changed()

    def changed(self) -> None:
        """Admit all requests that may be sent now, and set a timer for the next ones."""
        if not self.limiter.waiting:
            return
        now_us = self.now_us()
        for ticket in self.limiter.admit(now_us):
            event = self._events.pop(ticket, None)
            if event is not None:
                event.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.limiter.waiting:
            if self.on_wait is not None:
                self.on_wait()
            wait = self.limiter.wakes_in(now_us)
            if wait is not None:
                seconds = min(wait / 1e6 + 0.0005, _LONGEST_NAP_SECONDS)
                self._timer = asyncio.get_running_loop().call_later(seconds, self.changed)

    async def wait(self, ticket: Ticket) -> None:
        """Wait until a request is admitted. If the wait is cancelled, the request is dropped."""
        try:
            while ticket.state == "waiting":
                event = self._events[ticket] = anyio.Event()
                await event.wait()
        except BaseException:
            self._events.pop(ticket, None)
            self.limiter.withdraw(ticket)
            self.changed()
            raise


class RateLimitLease:
    """One call's place in the queue for all its requests.

    While no limit is known, nothing is counted and there is no ticket.
    """

    __slots__ = ("_learns", "_live", "_most", "_order", "_patience", "_ticket", "_waited_for", "model")

    def __init__(
        self,
        live: AsyncRateLimiter,
        model: str,
        order: int,
        most: tuple[int, int],
        patience: float | None,
        *,
        learns: bool = True,
    ) -> None:
        self._learns = learns
        self.model = model
        self._live = live
        self._order = order
        self._most = most
        self._patience = patience
        self._waited_for = ""
        self._ticket: Ticket | None = None

    def ask(self) -> bool:
        """Request a turn in the queue. Returns whether the request may be sent now."""
        live = self._live
        if not live.limiter.has_limits:
            return True
        ticket = self._ticket = Ticket(self.model, self._order, *self._most)
        if live.limiter.ask(ticket, live.now_us()):
            return True
        live.changed()
        return ticket.state == "held"

    def force(self) -> None:
        self._ticket = Ticket(self.model, self._order, *self._most)
        self._live.limiter.force(self._ticket, self._live.now_us())

    async def wait(self, time_left: float) -> None:
        live, ticket = self._live, self._ticket
        if ticket is None or ticket.state == "held":
            return
        patience = time_left if self._patience is None else min(self._patience, time_left)
        now_us = live.now_us()
        self._waited_for = live.limiter.reason(ticket, now_us)
        if live.limiter.opens_in(ticket, now_us) / 1e6 > patience:
            self._refuse(ticket, patience)
        with anyio.move_on_after(patience) as scope:
            await live.wait(ticket)
        if scope.cancelled_caught:
            self._refuse(ticket, patience)

    def give_up(self) -> None:
        """Leave the queue, unless the request may be sent now."""
        if self._ticket is not None and self._ticket.state != "held":
            self._refuse(self._ticket, 0.0)

    def send(self) -> bool:
        """Count the request as sent. Returns False if it must wait, because a refusal followed its admission."""
        live = self._live
        if self._ticket is None:
            if not live.limiter.has_limits:
                live.unseen[self] = None
                return True
            if not self.ask():  # a limit has become known since
                return False
        assert self._ticket is not None
        if live.limiter.send(self._ticket, live.now_us()):
            return True
        live.changed()
        return False

    # --- Reports of the call ---

    def report(self, report: AttemptReport) -> NextAttempt | None:
        """Record an adapter's report of an attempt. Returns a function that waits for the next attempt's turn, or
        None.
        """
        match report:
            case AttemptStarted():
                if self._ticket is not None and self._ticket.state != "sent":
                    self._over(None)
                    self.force()  # the adapter sent the request without waiting
            case AttemptFirstEvent(rate_limit=info):
                self._answered(NO_HEADERS if info is None or not self._learns else read_headers(info))
            case AttemptFailed(error=error):
                return self._failed(error)
            case _:
                pass
        return None

    def end(self, error: AdapterError | None, usage: TokenUsage | None) -> None:
        """Record the end of the call: its error, or None, and the usage of its last attempt."""
        if error is None:
            self._answered(NO_HEADERS)
        else:
            self._refused(error)
        self._over(usage)

    def _answered(self, headers: Headers) -> None:
        live = self._live
        if self._ticket is None:
            if headers is NO_HEADERS:
                return
            live.begin_to_count()
        if self._ticket is not None and self._ticket.state == "sent":
            live.limiter.answered(self._ticket, headers, live.now_us())
            live.changed()
            if headers is not NO_HEADERS:
                live.learned(self.model, headers)

    def _failed(self, error: AdapterError) -> NextAttempt | None:
        self._refused(error)
        if self._ticket is None:
            return None
        self._over(error.usage)

        async def next_attempt() -> None:
            await self._next_turn(error)

        return next_attempt

    def _refused(self, error: AdapterError) -> None:
        if not (self._learns and isinstance(error, RateLimitError) and _is_of_rate(error)):
            return
        live = self._live
        if self._ticket is None:
            live.begin_to_count()
        if self._ticket is not None and self._ticket.state == "sent":
            hint = error.retry_after_seconds
            live.limiter.refused(self._ticket, None if hint is None else math.ceil(hint * 1e6), live.now_us())
            live.learned(self.model, NO_HEADERS)

    def _over(self, usage: TokenUsage | None) -> None:
        live, ticket = self._live, self._ticket
        if ticket is None:
            live.unseen.pop(self, None)
        elif ticket.state != "over":
            used = None if usage is None else (usage.total_tokens - usage.output_tokens, usage.output_tokens)
            live.limiter.over(ticket, used, live.now_us())
            live.changed()

    async def _next_turn(self, failure: AdapterError) -> None:
        """Wait for the turn of the next attempt. If that takes too long, raise the failure of the previous one."""
        has_turn = self.ask()
        while True:
            try:
                if not has_turn:
                    await self.wait(math.inf)  # the adapter enforces the call's time limit
            except RateLimitWaitError:
                raise failure from None
            if self.send():
                return
            has_turn = False

    def _refuse(self, ticket: Ticket, patience: float) -> NoReturn:
        live = self._live
        now_us = live.now_us()
        seconds = live.limiter.opens_in(ticket, now_us) / 1e6
        why = live.limiter.reason(ticket, now_us) or self._waited_for
        live.limiter.withdraw(ticket)
        live.changed()
        raise RateLimitWaitError(
            f"{live.name}: not sent: {_WHY[why]} for {self.model}; the earliest free slot is in "
            f"{seconds:.3g} s, and the call may wait {patience:.3g} s",
            retry_after_seconds=seconds,
            retryable=True,
            provider=live.name,
        )


_WHY = {
    "requests": "no request is left under the rate limit",
    "tokens": "too few tokens are left under the rate limit",
    "pause": "the provider requested a pause",
    "probe": "after a rejected request, another call probes whether the provider accepts requests again",
    "": "other calls come first under the rate limit",
}


def _is_of_rate(error: RateLimitError) -> bool:
    """Whether a refusal shows a rate limit. An overload counts only if the server reports a time to wait."""
    if isinstance(error, QuotaExceededError | RateLimitWaitError):
        return False
    return not isinstance(error, OverloadedError) or error.retry_after_seconds is not None


# --- All queues of an engine ---

MOST_EARLY = 256
"""The maximum number of models with stored readings from other nodes, for an adapter that is not used here."""


class RateLimits:
    def __init__(self, share: Callable[[AsyncRateLimiter], None] | None = None) -> None:
        self._share = share
        self.on_observation: Callable[[str, str, LimitObservation], None] | None = None
        """Called with each learned limit of an adapter and a key. By default, it does nothing."""
        self._early: dict[tuple[str, str], dict[str, tuple[LimitObservation, int]]] = {}
        """The readings of other nodes for adapters and keys that are not used here, with their times, by model."""
        self._limiters: dict[tuple[str, str], AsyncRateLimiter] = {}
        self._entries: dict[tuple[str, str], AdapterEntry] = {}

    def lease(
        self, entry: AdapterEntry, key: str, model: str, order: int, most: tuple[int, int]
    ) -> RateLimitLease:
        name = entry.name, key
        live = self._limiters.get(name)
        if live is None or self._entries[name] is not entry:
            live = self._declared(name, entry)
        # With a pool of keys, the adapter chooses the key of each attempt, and pauses refused keys.
        pooled = not key and bool(entry.config.key_pool)
        return RateLimitLease(live, model, order, most, entry.config.max_wait_seconds, learns=not pooled)

    def learn(self, adapter: str, key: str, observation: LimitObservation, age_us: int) -> None:
        name, observed_us = (adapter, key), int(anyio.current_time() * 1e6) - age_us
        if (live := self._limiters.get(name)) is not None:
            self._apply(live, observation, observed_us)
        elif len(early := self._early.setdefault(name, {})) < MOST_EARLY:
            early[observation.model] = observation, observed_us

    @staticmethod
    def _apply(live: AsyncRateLimiter, observation: LimitObservation, observed_us: int) -> None:
        if (still := aged(observation, max(live.now_us() - observed_us, 0))) is not None:
            live.learn(still, observed_us)

    def is_free(self, adapter: str, model: str, key: str = "") -> bool:
        """Whether a small request to a model would be sent immediately."""
        live = self._limiters.get((adapter, key))
        if live is None or not live.limiter.has_limits:
            return True
        return live.limiter.is_free(model, live.now_us())

    def of(self, adapter: str) -> Iterator[RateLimit]:
        for live in self._of(adapter):
            now_us = live.known_time_us()
            if now_us is not None:
                yield from live.limiter.rooms(now_us, live.key)

    def queues(self, adapter: str) -> Iterator[RateLimitQueue]:
        """The calls that wait for the limits of an adapter, by their models."""
        for live in self._of(adapter):
            now_us = live.known_time_us()
            if now_us is not None:
                yield from live.limiter.lines(now_us, live.key)

    def share(self, live: AsyncRateLimiter) -> None:
        """Share the declared limits of a queue with the other nodes, if there are any."""
        if self._share is not None and any(live.limiter.declared):
            self._share(live)

    def _of(self, adapter: str) -> list[AsyncRateLimiter]:
        return [live for live in self._limiters.values() if live.name == adapter]

    def _declared(self, name: tuple[str, str], entry: AdapterEntry) -> AsyncRateLimiter:
        """The queue of an adapter that is new or may have a new configuration."""
        requests, tokens = entry.config.requests_per_minute, entry.config.tokens_per_minute
        live = self._limiters.get(name)
        changes = live is None or live.limiter.declared != (requests, tokens)
        if live is None:
            live = self._limiters[name] = AsyncRateLimiter(*name, RateLimiter(requests, tokens))
            if self.on_observation is not None:
                live.on_observation = partial(self.on_observation, *name)
            for observation, observed_us in self._early.pop(name, {}).values():
                self._apply(live, observation, observed_us)
        elif changes:
            live.limiter.declare(requests, tokens)
        if changes:
            self.share(live)
        live.changed()
        self._entries[name] = entry
        return live

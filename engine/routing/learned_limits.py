"""The rate limits of one model and key, or of all models of a key, and the pause after a refusal.

    open      requests are sent while the limits have room
    paused    the provider refused a request with 429: none is sent before the time in its reply
    opening   after the pause, one request probes. Each success admits two more, until as many are
              in progress as at the refusal, or until a reply's headers state the remaining amount.
              Another refusal pauses again, and longer if the provider names no time

Requests that were sent before a refusal have no effect on the pause: a success does not end it, and a refusal does
not start another.

In a cluster, nodes with the same key share their refusals and readings. A refusal on one node pauses all nodes. If
there are two readings of a limit, the later one is used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from typing import Literal, NamedTuple

# --- One limit of a provider ---

MINUTE_US = 60_000_000
_TOLERANCE = 1e-6


class Ticket:
    """One request, from its entry into the queue until its end. See `rate_slots` for its states."""

    __slots__ = (
        "counted", "generation", "input_tokens", "model", "number", "order", "output_tokens", "sent_us", "state",
    )  # fmt: skip

    def __init__(self, model: str, order: int, input_tokens: int, output_tokens: int) -> None:
        self.model = model
        self.order = order
        self.number = 0
        """The number of the request in its order. After the request is sent, its number among all sent
        requests.
        """
        self.input_tokens = input_tokens
        """Input tokens: the maximum, and after the request's end the actual number."""
        self.output_tokens = output_tokens
        """Output tokens: the maximum, and after the request's end the actual number."""
        self.state: Literal["new", "waiting", "held", "sent", "over"] = "new"
        self.sent_us = 0
        self.generation = -1
        """The number of refusals before this request was admitted."""
        self.counted = False
        """Whether the request is counted as one whose outcome is open."""


class Reading(NamedTuple):
    """The values of one limit in a reply's headers."""

    limit: float | None
    """The limit; None if the headers do not have it."""
    remaining: float
    reset_us: int | None
    """Microseconds until the limit is fully reset; None if the headers do not have it."""
    fixed: bool = False
    """Whether the provider counts in fixed windows."""


class Headers(NamedTuple):
    """The limits in a reply's headers."""

    requests: Reading | None = None
    tokens: Reading | None = None
    output: bool = True
    """Whether the token limit also counts the tokens of replies."""


NO_HEADERS = Headers()


class Limit(ABC):
    """One limit, and the amount in use."""

    def __init__(self, kind: Literal["requests", "tokens"], limit: float, *, output: bool = True) -> None:
        self.kind: Literal["requests", "tokens"] = kind
        self.limit = limit
        self.output = output

    def amount(self, ticket: Ticket) -> float:
        if self.kind == "requests":
            return 1.0
        tokens = ticket.input_tokens + ticket.output_tokens if self.output else ticket.input_tokens
        return min(tokens, self.limit)

    @abstractmethod
    def room(self, now_us: int) -> float:
        """The remaining amount."""

    @abstractmethod
    def opens_in(self, amount: float, now_us: int) -> int:
        """Microseconds until this amount is available, if no other request uses any of it."""

    @abstractmethod
    def hold(self, ticket: Ticket) -> None:
        """Reserve the amount that a request needs."""

    @abstractmethod
    def drop(self, ticket: Ticket) -> None:
        """Return the amount that was reserved for a request that was not sent."""

    @abstractmethod
    def send(self, ticket: Ticket, now_us: int) -> None:
        """Count a request with a reservation that is sent now."""

    @abstractmethod
    def change(self, ticket: Ticket, before: float, now_us: int) -> None:
        """Count a sent request whose amounts have changed. Call `room` at the same time before."""


LACKS_SHARE_US = 250_000
"""Microseconds after which a request that only lacks this node's share is checked again."""


class Declared(Limit):
    """A declared limit for any minute, which Callboard counts itself. In a cluster, each node has a share of
    it.
    """

    def __init__(self, kind: Literal["requests", "tokens"], limit: float, window_us: int = MINUTE_US) -> None:
        super().__init__(kind, limit)
        self.window_us = window_us
        self.share: float | None = None
        """This node's part of the limit; None if the node has all of it."""
        self._used = 0.0
        self._sent: deque[Ticket] = deque()

    def used(self, now_us: int) -> float:
        """The amount in use now, including admitted requests that are not sent yet."""
        self._forget(now_us)
        return self._used

    def room(self, now_us: int) -> float:
        return (self.limit if self.share is None else min(self.share, self.limit)) - self.used(now_us)

    def opens_in(self, amount: float, now_us: int) -> int:
        missing = amount - (self.limit - self.used(now_us))
        if missing <= _TOLERANCE:
            return 0 if self.share is None or amount <= self.room(now_us) + _TOLERANCE else LACKS_SHARE_US
        for ticket in self._sent:
            missing -= self.amount(ticket)
            if missing <= _TOLERANCE:
                return ticket.sent_us + self.window_us - now_us
        return self.window_us * math.ceil(missing / self.limit)

    def hold(self, ticket: Ticket) -> None:
        self._used += self.amount(ticket)

    def drop(self, ticket: Ticket) -> None:
        self._used -= self.amount(ticket)

    def send(self, ticket: Ticket, now_us: int) -> None:
        self._sent.append(ticket)

    def change(self, ticket: Ticket, before: float, now_us: int) -> None:
        if ticket.sent_us + self.window_us > now_us:
            self._used += self.amount(ticket) - before

    def _forget(self, now_us: int) -> None:
        sent = self._sent
        while sent and sent[0].sent_us + self.window_us <= now_us:
            self._used -= self.amount(sent.popleft())
        if not sent and self._used < _TOLERANCE:
            self._used = 0.0  # exactly zero, so that rounding errors don't add up


class Learned(Limit):
    """A limit from the provider's headers."""

    def __init__(self, kind: Literal["requests", "tokens"], *, output: bool = True) -> None:
        super().__init__(kind, 0.0, output=output)
        self.fixed = False
        self._level = 0.0  # without the reserved amounts
        self._stated = 0.0  # without the reserved amounts and the later refill
        self._reserved = 0.0
        self._as_of_us = 0
        self._full_at_us = 0
        self._rate = 0.0  # refill per microsecond

    def tell(self, reading: Reading, pending: float, reserved: float, now_us: int) -> None:
        limit = max(reading.limit or self.limit, reading.remaining, 1.0)
        period = MINUTE_US if reading.reset_us is None else max(reading.reset_us, 1)
        missing = limit - reading.remaining
        if missing > _TOLERANCE:
            self._rate = missing / period
        elif not self._rate:
            self._rate = limit / MINUTE_US
        self.limit, self.fixed = limit, self.fixed or reading.fixed
        self._level = self._stated = reading.remaining - pending
        self._reserved = reserved
        self._as_of_us, self._full_at_us = now_us, now_us + period

    @property
    def overdrawn(self) -> bool:
        """Whether requests used more than the reported remainder, although the limit should have refilled
        since.
        """
        return self._stated < 0 <= self._level

    def room(self, now_us: int) -> float:
        self._fill(now_us)
        return self._level - self._reserved

    def opens_in(self, amount: float, now_us: int) -> int:
        missing = amount - self.room(now_us)
        if missing <= _TOLERANCE:
            return 0
        if not self.fixed:
            return math.ceil(missing / self._rate)
        later = missing - (self.limit - self._level)
        windows = math.ceil(later / self.limit) if later > _TOLERANCE else 0
        return self._full_at_us - now_us + windows * MINUTE_US

    def hold(self, ticket: Ticket) -> None:
        self._reserved += self.amount(ticket)

    def drop(self, ticket: Ticket) -> None:
        self._reserved -= self.amount(ticket)

    def send(self, ticket: Ticket, now_us: int) -> None:
        self._fill(now_us)
        self._reserved -= self.amount(ticket)
        self._level -= self.amount(ticket)
        self._stated -= self.amount(ticket)

    def change(self, ticket: Ticket, before: float, now_us: int) -> None:
        self._fill(now_us)
        self._level = min(self._level + before - self.amount(ticket), self.limit)

    def _fill(self, now_us: int) -> None:
        if self.fixed:
            if now_us >= self._full_at_us:
                self._level = self.limit
                self._full_at_us = now_us + MINUTE_US  # The default, until the provider reports another time.
        else:
            self._level = min(self._level + self._rate * (now_us - self._as_of_us), self.limit)
        self._as_of_us = now_us


FIRST_PAUSE_US = 1_000_000
LONGEST_PAUSE_US = MINUTE_US
UNDERWAY_US = 2_000_000
"""Microseconds after which another node's reading certainly includes a request."""


class Account:
    """The limits that requests share, and the state of a pause."""

    def __init__(self) -> None:
        self.limits: tuple[Limit, ...] = ()
        self.paused_until_us = 0
        """The time before which no request is sent, if `cap` is not None."""
        self.cap: int | None = None
        """The number of requests that may be in progress after a refusal; None if the account is open."""
        self.generation = 0
        """The number of refusals that started a pause."""
        self._learned: dict[str, Learned] = {}
        self._fixed = False
        self._running: set[Ticket] = set()
        self._sent: deque[Ticket] = deque()
        self._observed = -1  # the number of the last request whose reply's headers were read
        self._observed_us = -MINUTE_US  # the time of the last reading on any node
        self._pauses = 0
        self._flying = 0
        self._peak = 1

    @property
    def idle(self) -> bool:
        return not self.limits and self.cap is None and not self._sent and not self._running

    def declare(self, requests: float | None, tokens: float | None, window_us: int = MINUTE_US) -> None:
        """Set the declared limits. Requests of the last minute count in them."""
        declared = [Declared("requests", requests, window_us)] if requests else []
        declared += [Declared("tokens", tokens, window_us)] if tokens else []
        for limit in declared:
            for ticket in self._sent:
                limit.hold(ticket)
                limit.send(ticket, ticket.sent_us)
            for ticket in self._running:
                limit.hold(ticket)
        self.limits = (*declared, *self._learned.values())

    def short_of(self, ticket: Ticket, now_us: int) -> str:
        """The reason why a request can't be sent now; empty if it can."""
        if self.cap is not None:
            if now_us < self.paused_until_us:
                return "pause"
            if self._flying >= self.cap:
                return "probe"
        for limit in self.limits:
            if limit.room(now_us) + 1e-6 < limit.amount(ticket):
                return limit.kind
        return ""

    def opens_in(self, ticket: Ticket, ahead: list[Ticket], now_us: int) -> int:
        """The minimum time in microseconds until a request may be sent. Other requests may delay it more."""
        wait = max(self.paused_until_us - now_us, 0) if self.cap is not None else 0
        for limit in self.limits:
            amount = limit.amount(ticket) + sum(map(limit.amount, ahead))
            wait = max(wait, limit.opens_in(amount, now_us))
        return wait

    # --- Progress of a request ---

    def hold(self, ticket: Ticket) -> None:
        self._running.add(ticket)
        for limit in self.limits:
            limit.hold(ticket)

    def drop(self, ticket: Ticket) -> None:
        """Release the reservation of a request that was not sent."""
        self._running.discard(ticket)
        for limit in self.limits:
            limit.drop(ticket)

    def send(self, ticket: Ticket, now_us: int) -> None:
        """Count a request that was admitted and is sent now."""
        self._running.discard(ticket)
        self._sent.append(ticket)
        for limit in self.limits:
            limit.send(ticket, now_us)

    def amounts(self, ticket: Ticket, now_us: int) -> list[float]:
        """The amount of each limit that a request uses now."""
        for limit in self.limits:
            limit.room(now_us)
        return [limit.amount(ticket) for limit in self.limits]

    def settle(self, ticket: Ticket, before: list[float], now_us: int) -> None:
        """Count a completed request at its actual usage.

        `before` is the result of `amounts` at the same time, before the change.
        """
        for limit, amount in zip(self.limits, before, strict=True):
            if isinstance(limit, Declared) or ticket.number > self._observed:
                limit.change(ticket, amount, now_us)

    def prune(self, now_us: int) -> None:
        sent, kept_us = self._sent, MINUTE_US if self.limits else 0
        while sent and sent[0].state == "over" and sent[0].sent_us + kept_us <= now_us:
            sent.popleft()

    # --- Requests with an open outcome ---

    def enter(self, ticket: Ticket) -> None:
        ticket.generation, ticket.counted = self.generation, True
        self._flying += 1

    def leave(self, ticket: Ticket) -> None:
        """Stop counting a request as open, because its outcome is known, or will never be known."""
        if ticket.counted:
            ticket.counted = False
            if ticket.generation == self.generation:
                self._flying -= 1

    def succeeded(self, ticket: Ticket) -> None:
        if not ticket.counted:
            return
        self.leave(ticket)
        if self.cap is not None and ticket.generation == self.generation:
            self._pauses = 0
            self.cap = self.cap + 1 if self.cap < self._peak else None

    def refused(self, ticket: Ticket, hint_us: int | None, now_us: int) -> None:
        """Record that the provider refused a request with 429."""
        if hint_us is not None:
            hint_us = min(hint_us, LONGEST_PAUSE_US)  # a retry has the same limit for hints
        stale = ticket.generation != self.generation
        self.leave(ticket)
        if stale:
            if self.cap is not None and hint_us is not None:
                self.paused_until_us = max(self.paused_until_us, now_us + hint_us)
            return
        pause = min(FIRST_PAUSE_US << min(self._pauses, 10), LONGEST_PAUSE_US) if hint_us is None else hint_us
        self._pause(now_us + pause, self._flying + 1)

    def refused_elsewhere(self, pause_us: int, now_us: int) -> None:
        """Record that another node was refused, and the length of its pause."""
        until_us = now_us + min(pause_us, LONGEST_PAUSE_US)
        if self.cap is None:
            self._pause(until_us, max(self._flying, 1))
        else:
            self.paused_until_us = max(self.paused_until_us, until_us)

    def _pause(self, until_us: int, flying: int) -> None:
        self._peak = max(flying, self._peak if self.cap is not None else 1)
        self.paused_until_us = max(self.paused_until_us if self.cap is not None else 0, until_us)
        self.cap, self._flying = 1, 0
        self.generation += 1
        self._pauses += 1
        self._forget_learned()

    def _forget_learned(self) -> None:
        """Drop the learned limits, because the refusal contradicts the earlier headers.

        The provider counts in fixed windows if it refuses although the limit should have refilled.
        """
        if self._learned:
            self._fixed = self._fixed or any(limit.overdrawn for limit in self._learned.values())
            self._learned.clear()
            self.limits = tuple(limit for limit in self.limits if isinstance(limit, Declared))

    # --- Reports of the provider ---

    def observe(
        self, ticket: Ticket, kind: Literal["requests", "tokens"], reading: Reading, now_us: int, *, output: bool
    ) -> None:
        """Apply one limit of the headers of a reply."""
        if ticket.number < self._observed:
            return  # from an older reply
        learned = self._learned_of(kind, reading, output=output)
        pending = 0.0
        for sent in reversed(self._sent):
            if sent.number <= ticket.number:
                break
            pending += learned.amount(sent)
        learned.tell(reading, pending, sum(map(learned.amount, self._running)), now_us)

    def observed(self, ticket: Ticket, now_us: int) -> None:
        """Note that all headers of a reply were applied."""
        if ticket.number >= self._observed:
            self._observed, self._observed_us = ticket.number, now_us
        if ticket.generation == self.generation:
            self.cap = None

    def observe_elsewhere(self, headers: Headers, observed_us: int, now_us: int, *, opens: bool) -> None:
        if observed_us <= self._observed_us:
            return
        self._observed_us = observed_us
        readings: tuple[tuple[Literal["requests", "tokens"], Reading | None, bool], ...] = (
            ("requests", headers.requests, True),
            ("tokens", headers.tokens, headers.output),
        )
        for kind, reading, output in readings:
            if reading is None:
                continue
            learned = self._learned_of(kind, reading, output=output)
            unseen = [
                sent for sent in self._sent if sent.state != "over" or sent.sent_us > observed_us - UNDERWAY_US
            ]
            pending = sum(map(learned.amount, unseen))
            learned.tell(reading, pending, sum(map(learned.amount, self._running)), now_us)
        if opens and self.cap is not None and now_us >= self.paused_until_us:
            self.cap = None

    def _learned_of(self, kind: Literal["requests", "tokens"], reading: Reading, *, output: bool) -> Learned:
        learned = self._learned.get(kind)
        if learned is None or learned.output != output:
            learned = self._learned[kind] = Learned(kind, output=output)
            learned.fixed = self._fixed
            declared = [limit for limit in self.limits if isinstance(limit, Declared)]
            self.limits = (*declared, *self._learned.values())
        learned.limit = reading.limit or learned.limit or reading.remaining
        return learned

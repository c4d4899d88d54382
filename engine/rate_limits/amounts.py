"""One limit of a provider, and how much of it is taken: a declared one, or one that its headers tell.

A limit is on requests or on tokens. Requests that were let in but not sent yet are *held*, and count at every
moment. A request that is sent counts from the moment at which it was sent. Nothing here knows the time: each
question brings it, in microseconds of one clock that never goes back.

    Declared   at most so much in any minute, by our own count
    Learned    what the provider says is left, less what was sent since. It fills up evenly until the moment that
               the provider names; or all at once at that moment, where the provider counts in fixed windows

A request that alone exceeds a limit counts as the whole limit: it goes when nothing else is counted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from typing import Literal, NamedTuple

MINUTE_US = 60_000_000
_TOLERANCE = 1e-6


class Ticket:
    """One request, from asking for its turn to its end.

    waiting → held → sent → over; a request that is given up is over at once.
    """

    __slots__ = (
        "counted", "generation", "input_tokens", "model", "number", "order", "output_tokens", "sent_us", "state",
    )  # fmt: skip

    def __init__(self, model: str, order: int, input_tokens: int, output_tokens: int) -> None:
        """A request that nobody asked for yet.

        Args:
            model: The model.
            order: The place of whoever asks. The lowest goes first.
            input_tokens: The upper end of the estimate of the input.
            output_tokens: The largest number of tokens of the reply.
        """
        self.model = model
        self.order = order
        self.number = 0
        """The number of the request within its order; once it is sent, among all that were sent."""
        self.input_tokens = input_tokens
        """Tokens of the input: at most, and once it is over, as they were."""
        self.output_tokens = output_tokens
        """Tokens of the reply, likewise."""
        self.state: Literal["new", "waiting", "held", "sent", "over"] = "new"
        """Where the request is."""
        self.sent_us = 0
        """The moment at which it was sent."""
        self.generation = -1
        """The number of refusals before it was let in."""
        self.counted = False
        """Whether it is counted among the requests whose outcome is open."""


class Reading(NamedTuple):
    """What a reply's headers say of one limit."""

    limit: float | None
    """The limit; None if it isn't said."""
    remaining: float
    """The part that is left."""
    reset_us: int | None
    """Microseconds until the limit is whole again; None if it isn't said."""
    fixed: bool = False
    """Whether the provider counts in fixed windows."""


class Limit(ABC):
    """One limit, and how much of it is taken."""

    def __init__(self, kind: Literal["requests", "tokens"], limit: float, *, output: bool = True) -> None:
        self.kind: Literal["requests", "tokens"] = kind
        """The thing that is limited."""
        self.limit = limit
        """The limit."""
        self.output = output
        """Whether tokens of the reply count."""

    def amount(self, ticket: Ticket) -> float:
        """What a request takes."""
        if self.kind == "requests":
            return 1.0
        tokens = ticket.input_tokens + ticket.output_tokens if self.output else ticket.input_tokens
        return min(tokens, self.limit)

    @abstractmethod
    def room(self, now_us: int) -> float:
        """What is left."""

    @abstractmethod
    def opens_in(self, amount: float, now_us: int) -> int:
        """Microseconds until so much is left, if nobody else takes any."""

    @abstractmethod
    def hold(self, ticket: Ticket, now_us: int) -> None:
        """Take what a request needs."""

    @abstractmethod
    def drop(self, ticket: Ticket, now_us: int) -> None:
        """Give back what is held for a request that was not sent."""

    @abstractmethod
    def send(self, ticket: Ticket, now_us: int) -> None:
        """Count a request that was held and is sent now."""

    @abstractmethod
    def change(self, ticket: Ticket, before: float, now_us: int) -> None:
        """Count a request that was sent otherwise than before. `room` was asked at the same moment."""


LACKS_SHARE_US = 250_000
"""The time until which a request looks again that lacks nothing but this node's share, in microseconds."""


class Declared(Limit):
    """A limit for any minute, by our own count. In a cluster a node has a share of it."""

    def __init__(self, kind: Literal["requests", "tokens"], limit: float, window_us: int = MINUTE_US) -> None:
        super().__init__(kind, limit)
        self.window_us = window_us
        self.share: float | None = None
        """The part of the limit that is this node's; None is all of it."""
        self._used = 0.0
        self._sent: deque[Ticket] = deque()

    def used(self, now_us: int) -> float:
        """What counts now, with what is let in and not sent yet."""
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

    def hold(self, ticket: Ticket, now_us: int) -> None:
        self._used += self.amount(ticket)

    def drop(self, ticket: Ticket, now_us: int) -> None:
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
            self._used = 0.0  # no sum of fractions drifts for ever


class Learned(Limit):
    """A limit that the provider's headers tell."""

    def __init__(self, kind: Literal["requests", "tokens"], *, output: bool = True) -> None:
        super().__init__(kind, 0.0, output=output)
        self.fixed = False
        self._level = 0.0  # without what is held
        self._stated = 0.0  # likewise, and without what has filled up since
        self._held = 0.0
        self._as_of_us = 0
        self._full_at_us = 0
        self._rate = 0.0  # in a microsecond

    def tell(self, reading: Reading, pending: float, held: float, now_us: int) -> None:
        """Take over what the provider says.

        Args:
            reading: The provider's words.
            pending: What was sent after the request whose reply this is.
            held: What was let in and is not sent yet.
            now_us: The time.
        """
        limit = max(reading.limit or self.limit, reading.remaining, 1.0)
        period = MINUTE_US if reading.reset_us is None else max(reading.reset_us, 1)
        missing = limit - reading.remaining
        if missing > _TOLERANCE:
            self._rate = missing / period
        elif not self._rate:
            self._rate = limit / MINUTE_US
        self.limit, self.fixed = limit, self.fixed or reading.fixed
        self._level = self._stated = reading.remaining - pending
        self._held = held
        self._as_of_us, self._full_at_us = now_us, now_us + period

    @property
    def overdrawn(self) -> bool:
        """Whether more was sent than the provider said was left, because the rest was to fill up meanwhile."""
        return self._stated < 0 <= self._level

    def room(self, now_us: int) -> float:
        self._fill(now_us)
        return self._level - self._held

    def opens_in(self, amount: float, now_us: int) -> int:
        missing = amount - self.room(now_us)
        if missing <= _TOLERANCE:
            return 0
        if not self.fixed:
            return math.ceil(missing / self._rate)
        later = missing - (self.limit - self._level)
        windows = math.ceil(later / self.limit) if later > _TOLERANCE else 0
        return self._full_at_us - now_us + windows * MINUTE_US

    def hold(self, ticket: Ticket, now_us: int) -> None:
        self._held += self.amount(ticket)

    def drop(self, ticket: Ticket, now_us: int) -> None:
        self._held -= self.amount(ticket)

    def send(self, ticket: Ticket, now_us: int) -> None:
        self._fill(now_us)
        self._held -= self.amount(ticket)
        self._level -= self.amount(ticket)
        self._stated -= self.amount(ticket)

    def change(self, ticket: Ticket, before: float, now_us: int) -> None:
        self._fill(now_us)
        self._level = min(self._level + before - self.amount(ticket), self.limit)

    def _fill(self, now_us: int) -> None:
        if self.fixed:
            if now_us >= self._full_at_us:
                self._level = self.limit
                self._full_at_us = now_us + MINUTE_US  # as long as nobody says otherwise
        else:
            self._level = min(self._level + self._rate * (now_us - self._as_of_us), self.limit)
        self._as_of_us = now_us

"""The limits of one model with one key, or of all models with one key, and what a refusal by the provider changes.

    open      requests go as far as the limits have room
    paused    the provider refused a request with 429: nothing goes before the moment that it named
    opening   after the pause one request probes. Each request that succeeds lets two more go, until as many are
              under way as at the refusal, or until a reply's headers say how much is left. Another refusal pauses
              again, and longer if the provider names no moment

Requests that were sent before a refusal say nothing of the time after it: neither does their success end the
pause, nor does their refusal begin another one.

In a cluster other nodes tell what they have learned with the same key. Their refusals pause here, too. Of two
readings of one limit the later one counts, whoever made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Literal

from .amounts import MINUTE_US, Declared, Learned, Limit, Reading, Ticket

FIRST_PAUSE_US = 1_000_000
LONGEST_PAUSE_US = MINUTE_US
UNDERWAY_US = 2_000_000
"""The age up to which a request may not be counted yet in what another node was told."""


class Account:
    """The limits that requests share."""

    def __init__(self) -> None:
        """An account of which no limit is known."""
        self.limits: tuple[Limit, ...] = ()
        """All limits that are known."""
        self.paused_until_us = 0
        """The moment before which nothing goes, if `cap` is a number."""
        self.cap: int | None = None
        """The number of requests that may be under way after a refusal; None if the account is open."""
        self.generation = 0
        """The number of refusals that began a pause."""
        self._learned: dict[str, Learned] = {}
        self._fixed = False
        self._held: set[Ticket] = set()
        self._sent: deque[Ticket] = deque()
        self._observed = -1  # the number of the last request whose headers were read
        self._observed_us = -MINUTE_US  # the moment of the last reading, whoever made it
        self._pauses = 0
        self._flying = 0
        self._peak = 1

    @property
    def idle(self) -> bool:
        """Whether nothing is known, and nothing under way."""
        return not self.limits and self.cap is None and not self._sent and not self._held

    def declare(self, requests: float | None, tokens: float | None, window_us: int = MINUTE_US) -> None:
        """Set the declared limits. What was sent in the last minute counts in them."""
        declared: list[Declared] = []
        if requests:
            declared.append(Declared("requests", requests, window_us))
        if tokens:
            declared.append(Declared("tokens", tokens, window_us))
        for limit in declared:
            for ticket in self._sent:
                limit.hold(ticket, ticket.sent_us)
                limit.send(ticket, ticket.sent_us)
            for ticket in self._held:
                limit.hold(ticket, 0)
        self.limits = (*declared, *self._learned.values())

    # -- may it go?

    def short_of(self, ticket: Ticket, now_us: int) -> str:
        """The reason why a request can't go now; empty if it can."""
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
        """Microseconds until a request may go: at least, since the outcome of others is not known.

        Args:
            ticket: The request.
            ahead: The requests that go before it.
            now_us: The time.
        """
        wait = max(self.paused_until_us - now_us, 0) if self.cap is not None else 0
        for limit in self.limits:
            amount = limit.amount(ticket) + sum(map(limit.amount, ahead))
            wait = max(wait, limit.opens_in(amount, now_us))
        return wait

    # -- what happens to a request

    def hold(self, ticket: Ticket, now_us: int) -> None:
        """Let a request in."""
        self._held.add(ticket)
        for limit in self.limits:
            limit.hold(ticket, now_us)

    def drop(self, ticket: Ticket, now_us: int) -> None:
        """Give back what a request held that was not sent."""
        self._held.discard(ticket)
        for limit in self.limits:
            limit.drop(ticket, now_us)

    def send(self, ticket: Ticket, now_us: int) -> None:
        """Count a request that was let in and is sent now."""
        self._held.discard(ticket)
        self._sent.append(ticket)
        for limit in self.limits:
            limit.send(ticket, now_us)

    def amounts(self, ticket: Ticket, now_us: int) -> list[float]:
        """What a request takes of each limit now."""
        for limit in self.limits:
            limit.room(now_us)
        return [limit.amount(ticket) for limit in self.limits]

    def settle(self, ticket: Ticket, before: list[float], now_us: int) -> None:
        """Count a request that is over as what it used. `before` is what `amounts` told at the same moment."""
        for limit, amount in zip(self.limits, before, strict=True):
            if isinstance(limit, Declared) or ticket.number > self._observed:
                limit.change(ticket, amount, now_us)

    def prune(self, now_us: int) -> None:
        """Forget requests that are over and count nowhere."""
        sent, kept_us = self._sent, MINUTE_US if self.limits else 0
        while sent and sent[0].state == "over" and sent[0].sent_us + kept_us <= now_us:
            sent.popleft()

    # -- requests whose outcome is open

    def enter(self, ticket: Ticket) -> None:
        """Count a request whose outcome is open."""
        ticket.generation, ticket.counted = self.generation, True
        self._flying += 1

    def leave(self, ticket: Ticket) -> None:
        """Count a request no more, of which the outcome is known or never will be."""
        if ticket.counted:
            ticket.counted = False
            if ticket.generation == self.generation:
                self._flying -= 1

    def succeeded(self, ticket: Ticket) -> None:
        """Take in that a request was not refused."""
        if not ticket.counted:
            return
        self.leave(ticket)
        if self.cap is not None and ticket.generation == self.generation:
            self._pauses = 0
            self.cap = self.cap + 1 if self.cap < self._peak else None

    def refused(self, ticket: Ticket, hint_us: int | None, now_us: int) -> None:
        """Take in that the provider refused a request with 429."""
        if hint_us is not None:
            hint_us = min(hint_us, LONGEST_PAUSE_US)  # a retry waits no longer for a hint, either
        stale = ticket.generation != self.generation
        self.leave(ticket)
        if stale:
            if self.cap is not None and hint_us is not None:
                self.paused_until_us = max(self.paused_until_us, now_us + hint_us)
            return
        pause = min(FIRST_PAUSE_US << min(self._pauses, 10), LONGEST_PAUSE_US) if hint_us is None else hint_us
        self._pause(now_us + pause, self._flying + 1)

    def refused_elsewhere(self, pause_us: int, now_us: int) -> None:
        """Take in that another node was refused, and how long it leaves the provider alone."""
        until_us = now_us + min(pause_us, LONGEST_PAUSE_US)
        if self.cap is None:
            self._pause(until_us, max(self._flying, 1))
        else:
            self.paused_until_us = max(self.paused_until_us, until_us)

    def _pause(self, until_us: int, flying: int) -> None:
        """Begin a pause.

        Args:
            until_us: The moment at which the pause ends.
            flying: The number of requests that were under way.
        """
        self._peak = max(flying, self._peak if self.cap is not None else 1)
        self.paused_until_us = max(self.paused_until_us if self.cap is not None else 0, until_us)
        self.cap, self._flying = 1, 0
        self.generation += 1
        self._pauses += 1
        self._forget_learned()

    def _forget_learned(self) -> None:
        """The refusal says more than the headers before it. A provider that refuses what was to fill up meanwhile
        counts in fixed windows.
        """
        if self._learned:
            self._fixed = self._fixed or any(limit.overdrawn for limit in self._learned.values())
            self._learned.clear()
            self.limits = tuple(limit for limit in self.limits if isinstance(limit, Declared))

    # -- what the provider says

    def observe(
        self, ticket: Ticket, kind: Literal["requests", "tokens"], reading: Reading, now_us: int, *, output: bool
    ) -> None:
        """Take in what the headers of a request's reply say of one limit."""
        if ticket.number < self._observed:
            return  # of an older reply
        learned = self._learned_of(kind, reading, output=output)
        pending = 0.0
        for sent in reversed(self._sent):
            if sent.number <= ticket.number:
                break
            pending += learned.amount(sent)
        learned.tell(reading, pending, sum(map(learned.amount, self._held)), now_us)

    def observed(self, ticket: Ticket, now_us: int) -> None:
        """All that the headers of a request's reply say has been taken in."""
        if ticket.number >= self._observed:
            self._observed, self._observed_us = ticket.number, now_us
        if ticket.generation == self.generation:
            self.cap = None

    def observe_elsewhere(
        self,
        readings: Mapping[Literal["requests", "tokens"], Reading],
        observed_us: int,
        now_us: int,
        *,
        output: bool,
        opens: bool,
    ) -> None:
        """Take in what another node was told of the limits.

        Args:
            readings: What it was told, as of now.
            observed_us: The moment at which it was told so.
            now_us: The time.
            output: Whether the limit of tokens counts those of replies.
            opens: Whether that was after its last refusal.
        """
        if observed_us <= self._observed_us:
            return
        self._observed_us = observed_us
        for kind, reading in readings.items():
            learned = self._learned_of(kind, reading, output=output or kind == "requests")
            unseen = [
                sent for sent in self._sent if sent.state != "over" or sent.sent_us > observed_us - UNDERWAY_US
            ]
            pending = sum(map(learned.amount, unseen))
            learned.tell(reading, pending, sum(map(learned.amount, self._held)), now_us)
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

"""The queue of requests for one adapter and key. It decides which request is sent next.

    new        the request is not in the queue yet
    waiting    a limit has no room for the request, or an earlier request waits for the same limit
    held       the request was admitted, and its amounts are reserved
    sent       the request is in progress, and the provider counts it
    over       the request has ended, or was cancelled

Requests wait in the order of their conversation turns, and within a turn in order of arrival. A request is sent
immediately if all its limits have room and no earlier request waits for one of them. So a model at its limit
delays no other model, and small requests can't overtake a large one forever.

The queue is pure: it never waits, and never reads the clock. After each change, the caller calls `admit`.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from callboard.adapters import RateLimitInfo

from .learned_limits import MINUTE_US, NO_HEADERS, Account, Headers, Learned, Reading, Ticket

_MOST_MODELS = 1024

_Queue = list[tuple[int, int, Ticket]]


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of one rate limit."""

    model: str | None
    """The model as ``provider:name``; None for all models of the adapter."""
    key: str
    """The name of the key; empty if the adapter has only one key."""
    kind: Literal["requests", "tokens"]
    source: Literal["declared", "learned"]
    """The source: the configuration, or the provider's headers."""
    limit: float
    """The limit: in any minute if it is declared, in the provider's period if it is learned."""
    left: float
    """The remaining amount."""


class RateLimitQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The calls to one model that wait for its rate limits."""

    model: str
    """The model as ``provider:name``."""
    key: str
    waiting: int
    """The number of calls that wait."""
    why: str
    """The reason: ``requests`` or ``tokens`` are used up; ``pause``, as the provider requested; ``probe``, while
    one call tests whether the provider accepts requests again; ``turn``, behind earlier calls.
    """
    opens_in_seconds: float
    """The minimum time in seconds until the first of these calls may be sent."""


class RateLimiter:
    """The limits of one adapter and key, and the requests that wait for them."""

    def __init__(self, requests: float | None = None, tokens: float | None = None) -> None:
        """A queue with declared limits for all models together; None means no limit."""
        self.shared = Account()
        """The limits of all models together."""
        self.models: dict[str, Account] = {}
        self.has_limits = False
        """Whether any limit is known or was known before."""
        self.waiting = 0
        self._queues: dict[str, _Queue] = {}
        self._requests_started = 0
        self._sent = 0
        self.declare(requests, tokens)

    def declare(self, requests: float | None, tokens: float | None) -> None:
        self.declared = requests, tokens
        self.shared.declare(requests, tokens)
        self.has_limits = self.has_limits or bool(requests or tokens)

    # --- Before sending ---

    def ask(self, ticket: Ticket, now_us: int) -> bool:
        """Add a request to the queue. Return whether it may be sent now. If not, it waits."""
        ticket.number = self._requests_started
        self._requests_started += 1
        model = self.models.get(ticket.model) or self._new_model(ticket.model)
        if not self.waiting and not self._short(ticket, model, now_us):
            self._let_in(ticket, model)
            return True
        self._enqueue(ticket)
        return False

    def force(self, ticket: Ticket, now_us: int) -> None:
        model = self.models.get(ticket.model) or self._new_model(ticket.model)
        self._let_in(ticket, model)
        self._send(ticket, model, now_us)

    def send(self, ticket: Ticket, now_us: int) -> bool:
        """Count a request that is sent now. Returns False if the provider refused another request after this one
        was admitted. This request then waits again.
        """
        model = self.models[ticket.model]
        if ticket.generation != model.generation:
            self._give_back(ticket, model)
            self._enqueue(ticket)
            return False
        self._send(ticket, model, now_us)
        return True

    def admit(self, now_us: int) -> list[Ticket]:
        """Admit all requests that may be sent now, in order."""
        if not self.waiting:
            return []
        admitted: list[Ticket] = []
        heads = {name: queue for name in list(self._queues) if (queue := self._head(name))}
        while heads:
            name = min(heads, key=lambda name: heads[name][0][:2])
            ticket, model = heads[name][0][2], self.models[name]
            if model.short_of(ticket, now_us):
                del heads[name]
                continue
            if self.shared.short_of(ticket, now_us):
                break
            heapq.heappop(heads[name])
            self.waiting -= 1
            self._let_in(ticket, model)
            admitted.append(ticket)
            if not self._head(name):
                del heads[name]
        return admitted

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a request that was cancelled before it was sent."""
        if ticket.state == "waiting":
            self.waiting -= 1
        elif ticket.state == "held":
            self._give_back(ticket, self.models[ticket.model])
        ticket.state = "over"

    # --- After sending ---

    def answered(self, ticket: Ticket, headers: Headers, now_us: int) -> None:
        """Record that the provider accepted a request, and the headers of its reply."""
        model = self.models[ticket.model]
        model.succeeded(ticket)
        if headers is NO_HEADERS:
            return
        self.has_limits = True
        if headers.requests is not None:
            model.observe(ticket, "requests", headers.requests, now_us, output=True)
        if headers.tokens is not None:
            model.observe(ticket, "tokens", headers.tokens, now_us, output=headers.output)
        model.observed(ticket, now_us)

    def refused(self, ticket: Ticket, hint_us: int | None, now_us: int) -> None:
        """Record that the provider refused a request because of a rate limit. `hint_us` is the requested wait."""
        self.has_limits = True
        self.models[ticket.model].refused(ticket, hint_us, now_us)

    def refused_elsewhere(self, model: str, pause_us: int, now_us: int) -> None:
        """Record that another node with this key was refused and sends nothing for `pause_us`."""
        self.has_limits = True
        (self.models.get(model) or self._new_model(model)).refused_elsewhere(pause_us, now_us)

    def answered_elsewhere(
        self, model: str, headers: Headers, observed_us: int, now_us: int, *, opens: bool
    ) -> None:
        """Apply the reading of another node with this key, see `Account.observe_elsewhere`."""
        self.has_limits = True
        account = self.models.get(model) or self._new_model(model)
        account.observe_elsewhere(headers, observed_us, now_us, opens=opens)

    def over(self, ticket: Ticket, used: tuple[int, int] | None, now_us: int) -> None:
        if ticket.state != "sent":
            if ticket.state != "over":
                self.withdraw(ticket)
            return
        model = self.models[ticket.model]
        model.leave(ticket)
        ticket.state = "over"
        if used is not None:
            accounts = (self.shared, model)
            before = [account.amounts(ticket, now_us) for account in accounts]
            ticket.input_tokens, ticket.output_tokens = used
            for account, amounts in zip(accounts, before, strict=True):
                account.settle(ticket, amounts, now_us)
        self.shared.prune(now_us)
        model.prune(now_us)

    # --- Questions about the limits ---

    def reason(self, ticket: Ticket, now_us: int) -> str:
        """The reason why a request waits; empty if it only waits for earlier requests."""
        return self._short(ticket, self.models[ticket.model], now_us)

    def is_free(self, model: str, now_us: int) -> bool:
        """Whether a small request to a model would be sent immediately."""
        account = self.models.get(model)
        small = Ticket(model, 0, 1, 0)
        if account is None:
            return not self.shared.short_of(small, now_us)
        return not self._head(model) and not self._short(small, account, now_us)

    def opens_in(self, ticket: Ticket, now_us: int) -> int:
        """The minimum number of microseconds until a request may be sent, if all earlier requests are sent."""
        place = ticket.order, ticket.number
        ahead = [other for other in self._all_waiting() if (other.order, other.number) < place]
        same = [other for other in ahead if other.model == ticket.model]
        of_model = self.models[ticket.model].opens_in(ticket, same, now_us)
        return max(of_model, self.shared.opens_in(ticket, ahead, now_us))

    def in_line(self) -> list[Ticket]:
        return sorted(self._all_waiting(), key=lambda ticket: (ticket.order, ticket.number))

    def wakes_in(self, now_us: int) -> int | None:
        """Microseconds until a waiting request may be admitted; None if no request only waits for time to pass."""
        waits = []
        for name in list(self._queues):
            queue = self._head(name)
            if queue:
                ticket = queue[0][2]
                of_model, of_all = self.models[name], self.shared
                waits.append(max(of_model.opens_in(ticket, [], now_us), of_all.opens_in(ticket, [], now_us)))
        return min((wait for wait in waits if wait > 0), default=None)

    def rooms(self, now_us: int, key: str = "") -> Iterator[RateLimit]:
        for name, account in ((None, self.shared), *self.models.items()):
            for limit in account.limits:
                yield RateLimit(
                    model=name,
                    key=key,
                    kind=limit.kind,
                    source="learned" if isinstance(limit, Learned) else "declared",
                    limit=limit.limit,
                    left=max(limit.room(now_us), 0.0),
                )

    def lines(self, now_us: int, key: str = "") -> Iterator[RateLimitQueue]:
        for name in list(self._queues):
            queue = self._head(name)
            if queue:
                first = queue[0][2]
                yield RateLimitQueue(
                    model=name,
                    key=key,
                    waiting=sum(ticket.state == "waiting" for _, _, ticket in queue),
                    why=self.reason(first, now_us) or "turn",
                    opens_in_seconds=self.opens_in(first, now_us) / 1e6,
                )

    # --- Helpers ---

    def _short(self, ticket: Ticket, model: Account, now_us: int) -> str:
        return self.shared.short_of(ticket, now_us) or model.short_of(ticket, now_us)

    def _let_in(self, ticket: Ticket, model: Account) -> None:
        ticket.state = "held"
        model.enter(ticket)
        model.hold(ticket)
        self.shared.hold(ticket)

    def _give_back(self, ticket: Ticket, model: Account) -> None:
        model.leave(ticket)
        model.drop(ticket)
        self.shared.drop(ticket)

    def _send(self, ticket: Ticket, model: Account, now_us: int) -> None:
        ticket.state, ticket.sent_us, ticket.number = "sent", now_us, self._sent
        self._sent += 1
        model.send(ticket, now_us)
        self.shared.send(ticket, now_us)

    def _enqueue(self, ticket: Ticket) -> None:
        ticket.state = "waiting"
        self.waiting += 1
        queue = self._queues.setdefault(ticket.model, [])
        heapq.heappush(queue, (ticket.order, ticket.number, ticket))

    def _head(self, model: str) -> _Queue:
        """The queue of a model, without cancelled requests at its head."""
        queue = self._queues.get(model, [])
        while queue and queue[0][2].state != "waiting":
            heapq.heappop(queue)
        if not queue:
            self._queues.pop(model, None)
        return queue

    def _all_waiting(self) -> Iterator[Ticket]:
        for queue in self._queues.values():
            for _, _, ticket in queue:
                if ticket.state == "waiting":
                    yield ticket

    def _new_model(self, name: str) -> Account:
        if len(self.models) >= _MOST_MODELS:
            for old in [old for old, account in self.models.items() if account.idle and old not in self._queues]:
                del self.models[old]
        account = self.models[name] = Account()
        return account


def read_headers(info: RateLimitInfo) -> Headers:
    """The limits in a provider's headers; `NO_HEADERS` if they don't state the remaining amount."""
    requests = _reading(info.requests_limit, info.requests_remaining, info.requests_reset, info.fixed_window)
    tokens = _reading(info.tokens_limit, info.tokens_remaining, info.tokens_reset, info.fixed_window)
    if requests is None and tokens is None:
        return NO_HEADERS
    return Headers(requests, tokens, info.counts_output)


def _reading(limit: int | None, remaining: int | None, reset: str | None, fixed: bool) -> Reading | None:
    if remaining is None or limit == 0:
        return None
    from callboard.adapters.http.retry import seconds_until

    seconds = None if reset is None else seconds_until(reset, time.time_ns() // 1000)
    return Reading(limit, remaining, None if seconds is None else round(seconds * 1e6), fixed)


class LimitObservation(msgspec.Struct, frozen=True):
    """The rate limits of a model that one reply shows."""

    model: str
    headers: Headers = NO_HEADERS
    pause_us: int = 0
    """The pause after a refusal, in microseconds, as the provider requests it; 0 without a refusal."""
    opens: bool = False
    """Whether the request was sent after the last refusal, so that the provider accepts requests again."""


def aged(observation: LimitObservation, age_us: int) -> LimitObservation | None:
    """An observation of the given age; None if it has expired."""
    if age_us >= MINUTE_US:
        return None
    requests, tokens, output = observation.headers
    headers = Headers(_aged(requests, age_us), _aged(tokens, age_us), output)
    return msgspec.structs.replace(observation, headers=headers, pause_us=max(observation.pause_us - age_us, 0))


def _aged(reading: Reading | None, age_us: int) -> Reading | None:
    if reading is None or reading.reset_us is None:
        return reading
    return reading._replace(reset_us=max(reading.reset_us - age_us, 1))

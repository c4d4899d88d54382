"""The permit of one call: the turn of each of its requests at the gate, and the lessons of the replies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
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

from .account import Ticket
from .gate import NO_HEADERS, Gate, Headers, Lesson, read_headers

_LONGEST_NAP_SECONDS = 60.0


class LiveGate:
    """A gate on an event loop: it wakes the requests that were let in."""

    def __init__(self, name: str, key: str, gate: Gate) -> None:
        self.name = name
        self.key = key
        self.gate = gate
        self.on_wait: Callable[[], None] | None = None
        """Called when requests wait; None if nothing can be done for them."""
        self.on_learned: Callable[[Lesson], None] | None = None
        """Called with the lesson of a reply; None if no other node uses the key."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.unseen: dict[Permit, None] = {}
        """The calls in progress that were sent before any limit was known."""
        self._told: dict[Ticket, anyio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None

    def now_us(self) -> int:
        """The time of the event loop in microseconds."""
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.get_running_loop()
        return int(loop.time() * 1e6)

    def known_time_us(self) -> int | None:
        """The same, also where no event loop runs; None if there never was one."""
        return None if self._loop is None else int(self._loop.time() * 1e6)

    def begin_to_count(self) -> None:
        """Count from now on, since a limit is known. The calls in progress are counted as sent now."""
        unseen, self.unseen = self.unseen, {}
        self.gate.known = True
        for permit in unseen:
            permit.force()

    def learned(self, model: str, headers: Headers) -> None:
        """Share the lesson of a reply with other nodes."""
        if self.on_learned is not None:
            account = self.gate.models[model]
            pause_us = 0 if account.cap is None else max(account.paused_until_us - self.now_us(), 0)
            self.on_learned(Lesson(model, headers, pause_us, account.cap is None))

    def learn(self, lesson: Lesson, observed_us: int) -> None:
        """Take in what others have learned."""
        now_us = self.now_us()
        if not self.gate.known:
            self.begin_to_count()
        if lesson.pause_us:
            self.gate.refused_elsewhere(lesson.model, lesson.pause_us, now_us)
        if lesson.headers.requests is not None or lesson.headers.tokens is not None:
            self.gate.answered_elsewhere(lesson.model, lesson.headers, observed_us, now_us, opens=lesson.opens)
        self.changed()

    def changed(self) -> None:
        """Admit all requests that may go now, and set a timer for the next ones."""
        if not self.gate.waiting:
            return
        now_us = self.now_us()
        for ticket in self.gate.admit(now_us):
            told = self._told.pop(ticket, None)
            if told is not None:
                told.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.gate.waiting:
            if self.on_wait is not None:
                self.on_wait()
            wait = self.gate.wakes_in(now_us)
            if wait is not None:
                seconds = min(wait / 1e6 + 0.0005, _LONGEST_NAP_SECONDS)
                self._timer = asyncio.get_running_loop().call_later(seconds, self.changed)

    async def wait(self, ticket: Ticket) -> None:
        """Return when a request that waits is let in. A request that is given up is forgotten."""
        try:
            while ticket.state == "waiting":
                told = self._told[ticket] = anyio.Event()
                await told.wait()
        except BaseException:
            self._told.pop(ticket, None)
            self.gate.withdraw(ticket, self.now_us())
            self.changed()
            raise


class Permit:
    """The turns of one call's requests.

    Nothing is counted, and there is no ticket, as long as no limit is known.
    """

    __slots__ = ("_learns", "_live", "_most", "_order", "_patience", "_ticket", "_waited_for", "model")

    def __init__(
        self,
        live: LiveGate,
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
        """Ask for a request's turn. Returns whether it may be sent now."""
        live = self._live
        if not live.gate.known:
            return True
        ticket = self._ticket = Ticket(self.model, self._order, *self._most)
        if live.gate.ask(ticket, live.now_us()):
            return True
        live.changed()
        return _is_held(ticket)

    def force(self) -> None:
        """Count a request that is sent without a turn."""
        self._ticket = Ticket(self.model, self._order, *self._most)
        self._live.gate.force(self._ticket, self._live.now_us())

    async def wait(self, time_left: float) -> None:
        """Wait for the turn that was asked for."""
        live, ticket = self._live, self._ticket
        if ticket is None or ticket.state == "held":
            return
        patience = time_left if self._patience is None else min(self._patience, time_left)
        now_us = live.now_us()
        self._waited_for = live.gate.reason(ticket, now_us)
        if live.gate.opens_in(ticket, now_us) / 1e6 > patience:
            self._refuse(ticket, patience)
        with anyio.move_on_after(patience) as scope:
            await live.wait(ticket)
        if scope.cancelled_caught:
            self._refuse(ticket, patience)

    def give_up(self) -> None:
        """Give the turn up unless the request may be sent now."""
        if self._ticket is not None and self._ticket.state != "held":
            self._refuse(self._ticket, 0.0)

    def send(self) -> bool:
        """Count the request as sent. False: it must wait, since a refusal came after it was let in."""
        live = self._live
        if self._ticket is None:
            if not live.gate.known:
                live.unseen[self] = None
                return True
            if not self.ask():  # a limit was learned since
                return False
        assert self._ticket is not None
        if live.gate.send(self._ticket, live.now_us()):
            return True
        live.changed()
        return False

    # --- Reports of the call ---

    def report(self, report: AttemptReport) -> NextAttempt | None:
        """Take in what an adapter reports of an attempt. Returns what waits for the next attempt's turn."""
        match report:
            case AttemptStarted():
                if self._ticket is not None and self._ticket.state != "sent":
                    self._over(None)
                    self.force()  # the adapter didn't wait for its turn
            case AttemptFirstEvent(rate_limit=said):
                self._answered(NO_HEADERS if said is None or not self._learns else read_headers(said))
            case AttemptFailed(error=error):
                return self._failed(error)
            case _:
                pass
        return None

    def end(self, error: AdapterError | None, usage: TokenUsage | None) -> None:
        """Take in the end of the call: its error, None if it went well, and what its last attempt used."""
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
            live.gate.answered(self._ticket, headers, live.now_us())
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
            live.gate.refused(self._ticket, None if hint is None else math.ceil(hint * 1e6), live.now_us())
            live.learned(self.model, NO_HEADERS)

    def _over(self, usage: TokenUsage | None) -> None:
        live, ticket = self._live, self._ticket
        if ticket is None:
            live.unseen.pop(self, None)
        elif ticket.state != "over":
            used = None if usage is None else (usage.total_tokens - usage.output_tokens, usage.output_tokens)
            live.gate.over(ticket, used, live.now_us())
            live.changed()

    async def _next_turn(self, failure: AdapterError) -> None:
        """Wait for the turn of another attempt. The failure of the last one is raised if that takes too long."""
        has_turn = self.ask()
        while True:
            try:
                if not has_turn:
                    await self.wait(math.inf)  # the adapter watches the call's time
            except RateLimitWaitError:
                raise failure from None
            if self.send():
                return
            has_turn = False

    def _refuse(self, ticket: Ticket, patience: float) -> NoReturn:
        live = self._live
        now_us = live.now_us()
        seconds = live.gate.opens_in(ticket, now_us) / 1e6
        why = live.gate.reason(ticket, now_us) or self._waited_for
        live.gate.withdraw(ticket, now_us)
        live.changed()
        raise RateLimitWaitError(
            f"{live.name}: not sent: {_WHY[why]} for {self.model}; there is room in {seconds:.3g} s at the "
            f"earliest, and the call may wait {patience:.3g} s",
            retry_after_seconds=seconds,
            retryable=True,
            provider=live.name,
        )


def _is_held(ticket: Ticket) -> bool:
    return ticket.state == "held"


_WHY = {
    "requests": "no request is left under the rate limit",
    "tokens": "too few tokens are left under the rate limit",
    "pause": "the provider wants a pause",
    "probe": "after a refusal, another call finds out whether the provider takes requests again",
    "": "other calls come first under the rate limit",
}


def _is_of_rate(error: RateLimitError) -> bool:
    """Whether a refusal is about a rate. An overload counts only if the server names a time."""
    if isinstance(error, QuotaExceededError | RateLimitWaitError):
        return False
    return not isinstance(error, OverloadedError) or error.retry_after_seconds is not None

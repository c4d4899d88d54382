"""No more calls in a time than may be made."""

from __future__ import annotations

import anyio

from adapters import CanonicalRequest

from ..calls.outcome import CallInfo, CallOutcome
from .contract import Middleware, Next


class RateLimit(Middleware):
    """Calls of every kind wait, in the order in which they come, until they may be made: so many a minute, evenly.

    A call that was waiting and is cancelled gives its place to the next one. calls_per_minute: of each provider,
    or with `per_provider=False` of all together. burst: how many may be made at once after a pause.
    Raises ValueError for no calls at all, or a burst below 1.
    """

    def __init__(self, calls_per_minute: float, *, burst: int = 1, per_provider: bool = True) -> None:
        if calls_per_minute <= 0 or burst < 1:
            raise ValueError("RateLimit needs calls_per_minute above 0 and a burst of at least 1")
        self._interval = 60.0 / calls_per_minute
        self._burst = burst
        self._per_provider = per_provider
        self._queues: dict[str, _Queue] = {}

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        await self._pass(request.model)
        return await next(request)

    async def admit(self, call: CallInfo) -> None:
        await self._pass(call.model)

    async def _pass(self, model: str) -> None:
        provider = model.partition(":")[0] if self._per_provider else ""
        await self._queues.setdefault(provider, _Queue()).pass_through(self._interval, self._burst)


class _Queue:
    """due: when a call that comes after a long pause would be the first of its burst, in the loop's time."""

    def __init__(self) -> None:
        self._turnstile = anyio.Lock(fast_acquire=True)
        self._due = 0.0

    async def pass_through(self, interval: float, burst: int) -> None:
        async with self._turnstile:
            wait = self._due - (burst - 1) * interval - anyio.current_time()
            if wait > 0:
                await anyio.sleep(wait)
            self._due = max(self._due, anyio.current_time()) + interval

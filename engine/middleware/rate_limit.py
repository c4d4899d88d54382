"""A limit for the number of calls in a minute."""

from __future__ import annotations

import anyio

from adapters import CanonicalRequest

from ..calls.outcome import CallInfo, CallOutcome
from .contract import Middleware, Next


class RateLimit(Middleware):
    """Lets calls of every kind wait, in the order in which they come, so that they are spread evenly over each
    minute.

    A waiting call that is cancelled gives its place to the next call.

    Args:
        calls_per_minute: The number of calls in a minute, above 0.
        burst: The number of calls that may be made at once after a pause, at least 1.
        per_provider: Whether each provider has the limit for itself.

    Raises:
        ValueError: A number is too small.
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
    """The calls that wait for one provider."""

    def __init__(self) -> None:
        self._turnstile = anyio.Lock(fast_acquire=True)
        self._due = 0.0  # the loop's time at which the next call is due without a burst

    async def pass_through(self, interval: float, burst: int) -> None:
        async with self._turnstile:
            wait = self._due - (burst - 1) * interval - anyio.current_time()
            if wait > 0:
                await anyio.sleep(wait)
            self._due = max(self._due, anyio.current_time()) + interval

"""A host's own calls made again as adapters make theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import AdapterError

from ..contract import RetryPolicy
from .retry import retry_delay, tell_retry

T = TypeVar("T")


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    max_retries: int = 2,
    policy: RetryPolicy | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """What `call()` gives; made again after an AdapterError that is retryable, by the rules that adapters follow.

    max_retries: calls after the first. policy: how long to wait between two, and who is told; None is the default
    one. clock: its randomness spreads the waits. Raises the last error.
    Adapters retry by themselves: a request that is made in `call` should have ``max_retries=0``.
    """
    chosen, retries = policy or RetryPolicy(), 0
    while True:
        try:
            return await call()
        except AdapterError as error:
            delay = retry_delay(error, retries, max_retries, chosen, clock.random())
            if delay is None:
                raise
            tell_retry(chosen, error, retries + 1, delay)
        await anyio.sleep(delay)
        retries += 1

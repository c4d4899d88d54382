"""Retries: when and after how long, and `retry()` for a host's own calls."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from typing import TypeVar

import anyio

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import AdapterError
from callboard.bus.log import Log

from ..config import RetryPolicy

T = TypeVar("T")

_log = Log("adapters.retry")

_PART = re.compile(
    r"[\s,]*([\d.]+)\s*(h|ms|m|s|us|µs|μs|ns|hours?|minutes?|min|milliseconds?|seconds?|sec)(?![a-z])",
    re.IGNORECASE,
)
_IN_TEXT = re.compile(r"\b(?:try again|retry|retrying|wait)(?: in| after| for)? (?=[\d.])", re.IGNORECASE)
_UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "ns": 1e-9}


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    max_retries: int = 2,
    policy: RetryPolicy | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """Make a call, and retry it after temporary errors, by the rules of adapters.

    Adapters retry by themselves, so a request inside `call` should have ``max_retries=0``.

    Args:
        call: Makes the call.
        max_retries: Calls after the first.
        policy: The waits between calls, and the observer; None uses the default policy.
        clock: Its randomness spreads the waits.

    Returns:
        The result of `call`.

    Raises:
        AdapterError: The last call's error.
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


def backoff_delay(retry: int, policy: RetryPolicy, random: float) -> float:
    jitter = 1.0 + 0.5 * random if policy.jitter else 1.0
    try:
        return min(policy.base_delay * policy.backoff_multiplier**retry * jitter, policy.max_delay)
    except OverflowError:  # the power of a very late retry
        return policy.max_delay


def retry_delay(
    error: AdapterError, retry: int, max_retries: int, policy: RetryPolicy, random: float
) -> float | None:
    """The seconds to wait before another attempt; None if the error must be raised.

    Args:
        error: The error.
        retry: The number of the retry, from 0.
        max_retries: The largest number of retries.
        policy: The policy of waits.
        random: A number in [0, 1).
    """
    if not error.retryable or retry >= max_retries:
        return None
    hint = error.retry_after_seconds
    if hint is None:
        return backoff_delay(retry, policy, random)
    if hint > policy.max_delay and policy.raise_on_long_hint:
        return None
    return min(hint, policy.max_delay)


def tell_retry(policy: RetryPolicy, error: AdapterError, attempt: int, delay: float) -> None:
    """Notify the policy's observer. Its own failure must not affect the call."""
    if policy.on_retry is None:
        return
    try:
        policy.on_retry(error, attempt, delay)
    except Exception as failure:
        _log.warning("on_retry_failed", failure, error=repr(failure))


def retry_after_seconds(headers: Mapping[str, str], message: str, now_us: int) -> float | None:
    """The wait that the provider asks for, in seconds; None if it asks for none.

    Its sources are `retry-after-ms`, `retry-after` as seconds, duration or date, and words in the message. Zero, a
    time in the past and invalid values are ignored, so that the policy's own wait applies.
    """
    milliseconds = number_of(headers.get("retry-after-ms"))
    if milliseconds:
        return milliseconds / 1000
    seconds = _retry_after(headers.get("retry-after"), now_us)
    if seconds is not None and seconds > 0:
        return seconds
    found = _IN_TEXT.search(message)
    return (duration_seconds(message[found.end() :]) or None) if found else None


def _retry_after(value: str | None, now_us: int) -> float | None:
    """The seconds of a `retry-after` header; negative for a date in the past."""
    if value is None:
        return None
    for read in (number_of, duration_seconds):
        seconds = read(value)
        if seconds is not None:
            return seconds
    from email.utils import parsedate_to_datetime  # `email` is a large import for a form that is rare

    try:
        when = parsedate_to_datetime(value)
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return when.timestamp() - now_us / 1e6
    except (ValueError, TypeError, OverflowError):
        return None


def duration_seconds(text: str) -> float | None:
    """Seconds of the duration at the start of a text, such as ``1h2m3s``, ``120ms`` or ``1 hour 20 minutes``."""
    seconds, at = 0.0, 0
    while (part := _PART.match(text, at)) is not None:
        try:
            seconds += float(part[1]) * _unit_seconds(part[2].lower())
        except ValueError:
            return None
        at = part.end()
    return seconds if at and math.isfinite(seconds) else None


def _unit_seconds(unit: str) -> float:
    if unit in ("µs", "μs"):
        return 1e-6
    if unit.startswith("milli"):
        return 0.001
    return _UNIT_SECONDS[unit if unit in _UNIT_SECONDS else unit[0]]


def number_of(text: str | None) -> float | None:
    """A finite number that isn't negative; None for anything else."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None

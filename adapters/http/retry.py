"""Waiting: retries of calls, polls of jobs, and the rate limits in replies' headers."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import anyio
import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import AdapterError, NetworkError, NotFoundError, RateLimitError, ServerError
from callboard.bus.log import Log

from ..config import RetryPolicy
from ..contract import RateLimitInfo

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

    Adapters also retry, so a request inside `call` should have ``max_retries=0``.

    Args:
        call: A function that makes the call.
        max_retries: Calls after the first.
        policy: The waits between calls, and the observer; None uses the default policy.
        clock: The source of the randomness in the waits.

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
            log_retry(chosen, error, retries + 1, delay)
        await anyio.sleep(delay)
        retries += 1


def backoff_delay(retry: int, policy: RetryPolicy, random: float) -> float:
    jitter = 1.0 + 0.5 * random if policy.jitter else 1.0
    try:
        return min(policy.base_delay * policy.backoff_multiplier**retry * jitter, policy.max_delay)
    except OverflowError:  # the power overflows at a very late retry
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


def log_retry(policy: RetryPolicy, error: AdapterError, attempt: int, delay: float) -> None:
    """Call the policy's observer. Its exceptions are logged, so they don't affect the call."""
    if policy.on_retry is None:
        return
    try:
        policy.on_retry(error, attempt, delay)
    except Exception as failure:
        _log.warning("on_retry_failed", failure, error=repr(failure))


def retry_after_seconds(headers: Mapping[str, str], message: str, now_us: int) -> float | None:
    """The wait that the provider asks for, in seconds; None if it asks for none.

    The wait is read from `retry-after-ms`, from `retry-after` (seconds, a duration or a date), or from the
    message. Zero, a time in the past and invalid values are ignored, so that the policy's own wait applies.
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
    from email.utils import parsedate_to_datetime  # imported here because `email` is large and dates are rare

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
    """Parse a finite number of at least 0; None for anything else."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


_NAMES = [f"{what}{unit}" for what in ("limit", "remaining", "reset") for unit in ("", "-requests", "-tokens")]
_LIMITS = {f"x-ratelimit-{name}": name for name in _NAMES}


def read_rate_limit(headers: Mapping[str, str]) -> RateLimitInfo | None:
    """Read the rate limits in a reply's headers; None if there are none.

    Headers without ``requests`` or ``tokens`` in their name are OpenRouter's. Its windows are fixed.
    """
    reported = _LIMITS.keys() & headers.keys()
    if not reported:
        return None
    found = {_LIMITS[header]: headers[header] for header in reported}
    return RateLimitInfo(
        requests_limit=_limit(found.get("limit-requests") or found.get("limit")),
        requests_remaining=_limit(found.get("remaining-requests") or found.get("remaining")),
        tokens_limit=_limit(found.get("limit-tokens")),
        tokens_remaining=_limit(found.get("remaining-tokens")),
        reset_at=found.get("reset-requests") or found.get("reset-tokens") or found.get("reset"),
        requests_reset=found.get("reset-requests") or found.get("reset"),
        tokens_reset=found.get("reset-tokens") or found.get("reset"),
        fixed_window="remaining" in found and "remaining-requests" not in found,
    )


def _limit(text: str | None) -> int | None:
    """Parse a limit; None for -1, which some gateways send if there is no limit."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


def reset_seconds(headers: Mapping[str, str], now_us: int) -> float | None:
    """The seconds until all exhausted limits reset; None if unknown."""
    waits = []
    for name, value in headers.items():
        if "ratelimit" in name and "reset" in name:
            remaining = headers.get(name.replace("reset", "remaining"))
            if remaining is None or number_of(remaining) == 0:
                waits.append(seconds_until(value, now_us))
    return max((wait for wait in waits if wait), default=None)


def seconds_until(text: str, now_us: int) -> float | None:
    """Parse a header with the time of a reset, and return the seconds until then; None for an invalid header."""
    now = now_us / 1e6
    value = number_of(text)
    if value is not None:
        if value >= 1e12:  # milliseconds since the epoch
            return max(0.0, value / 1000 - now)
        return max(0.0, value - now) if value >= 1e9 else value  # seconds since the epoch, or until the reset
    seconds = duration_seconds(text)
    if seconds is not None:
        return seconds
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, when.timestamp() - now)


class PollPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The times of polling a job, in seconds.

    Poll n (from 0) follows after `first` · `multiplier`ⁿ seconds, at most `longest`. With `jitter`, the wait is
    multiplied by a random factor in [1, 1.5). After temporary failures (the connection, the provider, a rate
    limit) the waits grow in the same way, or follow the provider's hint.
    """

    first: float = 2.0
    """The seconds before the first poll."""
    multiplier: float = 1.5
    """The factor from each wait to the next."""
    longest: float = 15.0
    """The longest wait in seconds."""
    jitter: bool = True
    """Whether waits are lengthened at random."""
    give_up_after: float = 900.0
    """If all polls fail for this many seconds, the last error is raised. The job itself continues."""
    not_yet: int = 3
    """The number of polls, from the first, at which "no such job" is ignored. A new job may become visible
    late.
    """

    def schedule(self) -> RetryPolicy:
        """The waits between polls, as a `RetryPolicy`."""
        return RetryPolicy(
            base_delay=self.first, backoff_multiplier=self.multiplier, max_delay=self.longest, jitter=self.jitter
        )


USUAL_POLLING = PollPolicy()


def is_passing(error: AdapterError) -> bool:
    """Whether the error of a poll affects only the poll, not the job."""
    return error.retryable or isinstance(error, NetworkError | ServerError | RateLimitError)


class Job(Protocol):
    @property
    def done(self) -> bool:
        """Whether the job has ended, well or not."""
        ...


J = TypeVar("J", bound=Job)


async def wait_for_job(
    retrieve: Callable[[], Awaitable[J]],
    job: J,
    *,
    policy: PollPolicy = USUAL_POLLING,
    random: Callable[[], float],
    on_look: Callable[[J], object] | None = None,
) -> J:
    """Wait for the end of a job, successful or not. Cancelling ends the wait, not the job."""
    schedule = policy.schedule()
    found, looks, failures = False, 0, 0
    failing_since = 0.0
    while not job.done:
        if failures == 0:
            delay = backoff_delay(looks, schedule, random())
        await anyio.sleep(delay)
        try:
            job = await retrieve()
        except AdapterError as error:
            now = anyio.current_time()
            failing_since = failing_since if failures else now
            failures += 1
            too_early = isinstance(error, NotFoundError) and not found and failures <= policy.not_yet
            if not too_early and (not is_passing(error) or now - failing_since >= policy.give_up_after):
                raise
            hint = error.retry_after_seconds
            delay = (
                backoff_delay(failures, schedule, random()) if hint is None else min(hint, policy.give_up_after)
            )
            continue
        found, failures = True, 0
        looks += 1
        if on_look is not None:
            on_look(job)
    return job

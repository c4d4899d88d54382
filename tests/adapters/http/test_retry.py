"""Retries of an adapter and of a host's own call, their delays, and the register of calls in progress."""

from __future__ import annotations

import math

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import retry
from callboard.adapters.config import RetryPolicy
from callboard.adapters.http.retry import (
    backoff_delay,
    duration_seconds,
    reset_seconds,
    retry_after_seconds,
    retry_delay,
)
from callboard.adapters.http.wire import RunningCalls
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CancelledError,
    CapabilityError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
    StreamError,
    UnsupportedToolChoiceError,
)
from callboard.bus.values.usage import TokenUsage

from ...definition_of_done.rows import row

pytestmark = pytest.mark.anyio

NOW_US = 1_445_412_480_000_000  # Wed, 21 Oct 2015 07:28:00 GMT
PLAIN = RetryPolicy(jitter=False)


@row("8.8.3")
def test_waits_double_up_to_the_cap() -> None:
    """The delays are 1, 2, 4 … 60 seconds. A very late retry causes no overflow."""
    assert [backoff_delay(retry, PLAIN, 0.9) for retry in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_delay(10**6, PLAIN, 0.0) == 60


@given(st.integers(0, 2000), st.floats(0, 1, exclude_max=True))
@row("8.8.3")
def test_jitter_only_lengthens_and_never_beyond_the_cap(retry: int, random: float) -> None:
    """A delay is between the plain one and one and a half times that."""
    plain, jittered = backoff_delay(retry, PLAIN, random), backoff_delay(retry, RetryPolicy(), random)
    assert plain <= jittered <= min(plain * 1.5, 60.0)


@pytest.mark.parametrize(("headers", "message", "expected"), [
    ({"retry-after": "7"}, "", 7.0),
    ({"retry-after": "0"}, "", None),
    ({"retry-after": " 1.5 "}, "", 1.5),
    ({"retry-after-ms": "250.5"}, "", 0.2505),
    ({"retry-after-ms": "250", "retry-after": "7"}, "", 0.25),
    ({"retry-after-ms": "soon", "retry-after": "7"}, "", 7.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, "", 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30"}, "", 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 09:28:30 +0200"}, "", 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT"}, "", None),
    ({"retry-after": "Wed, 99 Oct 2015 07:27:00 GMT"}, "", None),
    ({"retry-after": "-5"}, "", None),
    ({"retry-after": "NaN"}, "", None),
    ({"retry-after": "inf"}, "", None),
    ({"retry-after": "1e999"}, "", None),
    ({"retry-after": ""}, "", None),
    ({"retry-after": "soon"}, "", None),
    ({}, "", None),
    ({}, "Please try again in 5.289s. Visit", 5.289),
    ({}, "Please try again in 120ms.", 0.12),
    ({}, "Please try again in 6m0s.", 360.0),
    ({}, "Please try again in 2m59.56s.", 179.56),
    ({"retry-after": "0s"}, "", None),
    ({"retry-after": "0"}, "try again in 4s", 4.0),
    ({"retry-after-ms": "0"}, "", None),
    ({"retry-after-ms": "0", "retry-after": "2"}, "", 2.0),
    ({}, "try again in 0s", None),
    ({}, "Please TRY AGAIN IN 1h2m3s", 3723.0),
    ({}, "please try again in a while", None),
    ({}, "please try again in ..s", None),
    ({"retry-after": "3"}, "try again in 9s", 3.0),
    ({"retry-after": "6m0s"}, "", 360.0),
    ({"retry-after": "120ms"}, "", 0.12),
    ({"retry-after": "26 seconds"}, "", 26.0),
    ({}, "Please retry after 26 seconds.", 26.0),
    ({}, "Please wait 2 minutes before the next request", 120.0),
    ({}, "Retrying in 1 hour, 20 minutes", 4800.0),
    ({}, "try again in 500 milliseconds", 0.5),
    ({}, "try again in 30µs", 3e-5),
    ({}, "retry in 3 steps", None),
    ({}, "try again in 5 smiles", None),
])  # fmt: skip
def test_hints_are_read_in_every_form(headers: dict[str, str], message: str, expected: float | None) -> None:
    """Milliseconds, seconds, dates and words are read, in this order. Invalid values are no hint."""
    found = retry_after_seconds(headers, message, NOW_US)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("headers", "expected"), [
    ({"x-ratelimit-reset-tokens": "6m0s"}, 360.0),
    ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, 360.0),
    ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "90"}, None),
    ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "17"}, 1.0),
    ({"x-ratelimit-reset-requests": "12ms", "x-ratelimit-reset-tokens": "2m59.56s"}, 179.56),
    ({"x-ratelimit-reset": "1445412510000", "x-ratelimit-remaining": "0"}, 30.0),
    ({"x-ratelimit-reset": "1445412510"}, 30.0),
    ({"ratelimit-reset": "30", "ratelimit-remaining": "0"}, 30.0),
    ({"anthropic-ratelimit-requests-reset": "2015-10-21T07:28:30Z"}, 30.0),
    ({"anthropic-ratelimit-requests-reset": "2015-10-21T07:20:00Z"}, None),
    ({"x-ratelimit-reset-tokens": "-1"}, None),
    ({"x-ratelimit-reset-tokens": "0"}, None),
    ({"x-ratelimit-reset-tokens": "soon"}, None),
    ({}, None),
])  # fmt: skip
def test_the_reset_of_a_used_up_limit_is_a_hint(headers: dict[str, str], expected: float | None) -> None:
    """All forms are read. A limit that is not used up gives no hint."""
    found = reset_seconds(headers, NOW_US)
    assert found == (None if expected is None else pytest.approx(expected))


@given(st.text(), st.text(), st.from_regex(r"([\d.]+(h|ms|m|s)){1,4}", fullmatch=True) | st.text())
def test_no_hint_raises(one: str, other: str, message: str) -> None:
    """For any value of a proxy, the result is a finite delay or none. A number with two points is no duration."""
    found = reset_seconds({"x-ratelimit-reset": one, "x-ratelimit-remaining": other}, NOW_US)
    assert found is None or (math.isfinite(found) and found > 0)
    for hint in (
        retry_after_seconds({"retry-after-ms": one, "retry-after": other}, f"try again in {message}", NOW_US),
        duration_seconds(message),
    ):
        assert hint is None or (math.isfinite(hint) and hint >= 0)


def test_a_hint_replaces_the_schedule_and_is_capped() -> None:
    """A provider's 7 s are 7 s, and its 3,600 s are 60 s. Jitter does not change them. A long hint can also end
    the call, so that a host can use another provider.
    """
    impatient = RetryPolicy(raise_on_long_hint=True, max_delay=10)
    for policy, seconds, delay in (
        (RetryPolicy(), 7, 7), (RetryPolicy(), 0, 0), (RetryPolicy(), 3600, 60), (impatient, 10, 10),
        (impatient, 11, None),
    ):  # fmt: skip
        assert retry_delay(RateLimitError("", retry_after_seconds=seconds), 0, 2, policy, 0.9) == delay


def test_only_temporary_failures_are_retried_and_exactly_as_often_as_allowed() -> None:
    """The first `max_retries` failures are followed by another attempt, and the next one is not."""
    for kind in (RateLimitError, OverloadedError, ServerError, NetworkError, RequestTimeoutError, StreamError):
        assert [retry_delay(kind(""), retry, 2, PLAIN, 0) for retry in range(4)] == [1.0, 2.0, None, None], kind
        assert retry_delay(kind(""), 0, 0, PLAIN, 0) is None
    for lasting in (
        AuthError, AccessDeniedError, QuotaExceededError, ContextOverflowError, InvalidRequestError, NotFoundError,
        ContentFilterError, CapabilityError, UnsupportedToolChoiceError, CancelledError,
    ):  # fmt: skip
        assert retry_delay(lasting("", retry_after_seconds=1), 0, 9, PLAIN, 0) is None, lasting


# -- A host's own call is retried like an adapter's call.


class Failing:
    """A call that raises the given errors in turn and then returns "done". It records the time of each run."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.moments: list[float] = []

    async def __call__(self) -> str:
        self.moments.append(anyio.current_time())
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    @property
    def waits(self) -> list[float]:
        return [round(self.moments[n + 1] - self.moments[n], 6) for n in range(len(self.moments) - 1)]


async def test_a_host_s_call_is_retried_by_the_policy_and_reported() -> None:
    """Each delay is longer, unless the provider sends a delay."""
    told: list[tuple[type[AdapterError], int, float]] = []

    def tell(error: AdapterError, attempt: int, delay: float) -> None:
        told.append((type(error), attempt, delay))

    slowly = RateLimitError("slowly", retry_after_seconds=7)
    call = Failing(OverloadedError("busy"), slowly, OverloadedError("busy"))
    policy = RetryPolicy(jitter=False, on_retry=tell)
    assert await retry(call, max_retries=3, policy=policy) == "done"
    assert call.waits == [1, 7, 4]
    assert told == [(OverloadedError, 1, 1), (RateLimitError, 2, 7), (OverloadedError, 3, 4)]


@pytest.mark.parametrize(("errors", "waits"), [
    ([OverloadedError(f"busy {number}") for number in range(5)], [1, 2]),
    ([AuthError("busy 0")], []),
    ([ValueError("busy 0, of the host's own")], []),
], ids=["temporary", "permanent", "not a provider's"])  # fmt: skip
async def test_a_host_s_call_has_a_maximum_of_retries(errors: list[Exception], waits: list[float]) -> None:
    """After all retries, the last error is raised. Permanent errors are raised immediately."""
    call = Failing(*errors)
    with pytest.raises(type(errors[0]), match=f"busy {len(waits)}"):
        await retry(call, policy=PLAIN)
    assert call.waits == waits


# -- The register of calls in progress: it keeps no call alive, and does not grow with ended calls.


class Call:
    def __init__(self) -> None:
        self.ended = False

    async def cancel(self, *, at_once: bool = False) -> None:
        self.ended = True

    def usage_so_far(self) -> TokenUsage | None:
        return None


def test_entries_of_ended_calls_are_limited() -> None:
    """All live calls stay, however many there are. A call that has ended is found by its id alone, because its
    caller may still need its usage.
    """
    calls = RunningCalls()
    living = [Call() for _ in range(200)]
    for number, call in enumerate(living):
        calls.add(f"live_{number}", call)
    for number in range(5_000):
        calls.add(f"gone_{number}", Call())
    assert len(calls._calls) <= 2 * len(living) + 64
    assert [*calls] == living
    living[0].ended = True
    assert calls.get("live_0") is living[0]
    assert [*calls] == living[1:]

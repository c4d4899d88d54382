"""A host's own call is made again as an adapter makes its own."""

from __future__ import annotations

import anyio
import pytest

from callboard.adapters import AdapterError, AuthError, OverloadedError, RateLimitError, RetryPolicy, retry

pytestmark = pytest.mark.anyio

PLAIN = RetryPolicy(jitter=False)


class Failing:
    """Raises what it was given, one after the other, and then says "done"; with the moment of each call."""

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


async def test_it_waits_as_the_policy_says_and_tells_its_observer() -> None:
    """Longer each time, unless the provider says how long."""
    told: list[tuple[type[AdapterError], int, float]] = []

    def tell(error: AdapterError, attempt: int, delay: float) -> None:
        told.append((type(error), attempt, delay))

    slowly = RateLimitError("slowly", retry_after_seconds=7)
    call = Failing(OverloadedError("busy"), slowly, OverloadedError("busy"))
    policy = RetryPolicy(jitter=False, on_retry=tell)
    assert await retry(call, max_retries=3, policy=policy) == "done"
    assert call.waits == [1, 7, 4]
    assert told == [(OverloadedError, 1, 1), (RateLimitError, 2, 7), (OverloadedError, 3, 4)]


async def test_it_gives_up_after_so_many() -> None:
    """The last error is raised, after one call more than there are retries."""
    call = Failing(*(OverloadedError(f"busy {number}") for number in range(5)))
    with pytest.raises(OverloadedError, match="busy 2"):
        await retry(call, policy=PLAIN)
    assert call.waits == [1, 2]


@pytest.mark.parametrize("error", [AuthError("no"), ValueError("of the host's own")])
async def test_what_would_fail_again_is_raised_at_once(error: Exception) -> None:
    """An error that isn't retryable, and one that is no provider's."""
    call = Failing(error)
    with pytest.raises(type(error)):
        await retry(call, policy=PLAIN)
    assert len(call.moments) == 1


async def test_without_retries_there_is_one_call() -> None:
    """As with an adapter's max_retries=0."""
    call = Failing(OverloadedError("busy"))
    with pytest.raises(OverloadedError):
        await retry(call, max_retries=0)
    assert len(call.moments) == 1

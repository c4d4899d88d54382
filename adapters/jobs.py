"""Polling a job until it ends. A failed poll has no effect on the job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
import msgspec

from callboard.adapters.http.retry import backoff_delay
from callboard.bus.errors import AdapterError, NetworkError, NotFoundError, RateLimitError, ServerError

from .config import RetryPolicy


class PollPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The times of polling a job, in seconds.

    The n-th poll (n from 0) is after `first` · `multiplier`ⁿ seconds, times a random factor in [1, 1.5) if
    `jitter`, and after `longest` at most. After temporary failures (the connection, the provider, a rate limit)
    the waits grow in the same way, or follow the provider's hint.
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
    """The seconds after which the last error is raised if all polls have failed. The job continues."""
    not_yet: int = 3
    """The number of first polls that may find no such job, because a new job may be visible with a delay."""

    def schedule(self) -> RetryPolicy:
        """The pauses between polls, as waits between attempts."""
        return RetryPolicy(
            base_delay=self.first, backoff_multiplier=self.multiplier, max_delay=self.longest, jitter=self.jitter
        )


USUAL_POLLING = PollPolicy()


def is_passing(error: AdapterError) -> bool:
    """Whether an error of a poll concerns only the poll, not the job."""
    return error.retryable or isinstance(error, NetworkError | ServerError | RateLimitError)


class Job(Protocol):
    """The state of a job of any kind."""

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
    seen, looks, failures = False, 0, 0
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
            too_early = isinstance(error, NotFoundError) and not seen and failures <= policy.not_yet
            if not too_early and (not is_passing(error) or now - failing_since >= policy.give_up_after):
                raise
            hint = error.retry_after_seconds
            delay = (
                backoff_delay(failures, schedule, random()) if hint is None else min(hint, policy.give_up_after)
            )
            continue
        seen, failures = True, 0
        looks += 1
        if on_look is not None:
            on_look(job)
    return job

"""Looking at a job until it is over. A look that fails never ends the job, and never makes a second one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
import msgspec

from callboard.adapters.http.retry import backoff_delay
from callboard.bus.errors import AdapterError, NetworkError, NotFoundError, RateLimitError, ServerError

from .config import RetryPolicy


class PollPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to look at a job. Times are in seconds.

    The n-th look (n from 0) comes after `first` · `multiplier`ⁿ seconds, times a random factor in [1, 1.5) if
    `jitter`, and after `longest` at most. Looks that fail in passing (the connection, the provider's own faults, a
    rate limit) become rarer in the same way, or come when the provider says.
    """

    first: float = 2.0
    """The seconds before the first look."""
    multiplier: float = 1.5
    """The factor by which each wait is longer than the one before."""
    longest: float = 15.0
    """The longest wait in seconds."""
    jitter: bool = True
    """Whether waits are made longer at random."""
    give_up_after: float = 900.0
    """The seconds after which the last error is raised if all looks have failed. The job goes on."""
    not_yet: int = 3
    """The number of first looks that may find no such job: a provider's servers may not yet share a new job."""

    def schedule(self) -> RetryPolicy:
        """The pauses between looks, in the form of the waits between attempts."""
        return RetryPolicy(
            base_delay=self.first, backoff_multiplier=self.multiplier, max_delay=self.longest, jitter=self.jitter
        )


USUAL_POLLING = PollPolicy()


def is_passing(error: AdapterError) -> bool:
    """Whether an error of a look concerns only the look, and not the job."""
    return error.retryable or isinstance(error, NetworkError | ServerError | RateLimitError)


class Job(Protocol):
    """A job of any kind, as it was seen once."""

    @property
    def done(self) -> bool:
        """Whether the job has come to its end, good or bad."""
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
    """The job when it is over, completed or not. Cancelling ends the waiting, and not the job."""
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

"""The contract of adapters with batches: the protocol, its requests and its jobs.

A batch holds many conversations for one model. The provider answers them within about a day, usually for half the
price and in any order. The job belongs to the provider and continues without this process. Creating a job costs
money. If the answer is lost, the request is not repeated. Instead, the provider's list is searched for the
caller's mark. Anthropic's jobs have no mark: a job is found by its time and size, and confirmed by its results.
All other requests may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.values.messages import CallWarning

from .contract import AttemptObserver, CallRequest, CanonicalRequest, CanonicalResponse

__all__ = [
    "BatchAdapter",
    "BatchItem",
    "BatchJob",
    "BatchLimits",
    "BatchOutcome",
    "BatchRequest",
    "BatchStatus",
]

BatchStatus: TypeAlias = Literal[
    "queued", "in_progress", "cancelling", "completed", "failed", "expired", "cancelled"
]
"""The status of a job, by Callboard's names. The last four are final. A job may have results after any of them."""


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest size of one job."""

    max_requests: int
    """The largest number of requests."""
    max_bytes: int
    """The largest number of bytes of all requests, as sent."""


class BatchItem(msgspec.Struct, frozen=True):
    """One request of a batch."""

    id: str
    """The id of the request and of its result: 1 to 64 of ``A-Z a-z 0-9 _ -``, unique in a batch."""
    request: CanonicalRequest
    """The request."""


class BatchRequest(CallRequest, frozen=True, kw_only=True):
    """A new job with its requests, which all use `model`."""

    mark: str
    """A text that identifies the job in the provider's list; at most 200 characters."""
    items: tuple[BatchItem, ...]
    """The requests of the job. `BatchAdapter.split_batch` returns the numbers of requests that fit into jobs."""


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job as the provider reports it."""

    id: str
    """The provider's id of the job."""
    provider: str
    """The adapter's name."""
    status: BatchStatus
    """The status of the job."""
    total: int | None = None
    """The number of requests; None if the provider reports none."""
    succeeded: int = 0
    """The number of answered requests, as reported by the provider before the end of the job."""
    failed: int = 0
    """The number of failed requests, as reported by the provider before the end of the job."""
    error: AdapterError | None = None
    """The reason why the whole job failed."""
    created_at: int | None = None
    """The creation time in seconds since the epoch; None if not reported."""
    expires_at: int | None = None
    """The time at which the provider stops working on the job, in seconds since the epoch; None if not reported.
    """
    mark: str | None = None
    """The caller's mark; None if the provider keeps none."""
    places: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Where the results are: file ids or addresses, by the provider's names."""
    key: str | None = None
    """The name of the key that owns the job; None for the adapter's own key."""
    certain: bool = True
    """Whether the job is certainly the caller's. A job found in a list without a mark is uncertain until its
    results are read.
    """
    warnings: tuple[CallWarning, ...] = ()
    """Warnings for the caller. An example is ``found_again``, for a job that was found although the answer to its
    creation was lost.
    """
    provider_request_id: str | None = None
    """The provider's id of the request, to report to its support."""

    @property
    def done(self) -> bool:
        """Whether the job has ended, well or not."""
        return self.status in ("completed", "failed", "expired", "cancelled")


BatchOutcome: TypeAlias = CanonicalResponse | AdapterError
"""The result of one request: a response or the request's error."""


@runtime_checkable
class BatchAdapter(Protocol):
    """One provider's batches. A call raises only AdapterError and the loop's cancellation exception."""

    name: str
    """The adapter's name, which is the prefix of its models' names."""

    def get_batch_limits(self, model: str) -> BatchLimits:
        """The largest size of a job. Raises CapabilityError if the provider does not support batches."""
        ...

    def split_batch(self, items: Sequence[BatchItem]) -> tuple[int, ...]:
        """Split the requests into jobs, in order, and return each job's number of requests. Nothing is sent.

        Raises:
            CapabilityError: The provider has no batches, or a request needs an ability that the model lacks.
            InvalidRequestError: A request can't be written, or is larger than the limit of a job.
        """
        ...

    async def create_batch(self, request: BatchRequest, *, on_attempt: AttemptObserver | None = None) -> BatchJob:
        """Create a job. The request is repeated only if the provider certainly did not run it.

        Raises:
            CapabilityError: The provider has no batches. Nothing was sent.
            OutcomeUnknownError: The answer was lost. A job may exist, but its id is unknown.
            AdapterError: The request failed for another reason.
        """
        ...

    async def find_batch(
        self, model: str, mark: str, count: int, since: int, *, key: str | None = None, known: Sequence[str] = ()
    ) -> BatchJob | None:
        """Find a job whose creation was not confirmed. Returns it if the provider lists exactly one match.

        Args:
            model: The job's model.
            mark: The job's mark.
            count: The number of requests in the job.
            since: The time of the creation request, in seconds since the epoch.
            key: The name of the key that created the job; None for the adapter's own.
            known: The ids of jobs to exclude.

        Raises:
            OutcomeUnknownError: Several jobs match.
            AdapterError: The list is unavailable.
        """
        ...

    async def retrieve_batch(self, job_id: str, *, model: str, key: str | None = None) -> BatchJob:
        """Request the current state of a job. The request takes at most 30 seconds.

        Raises:
            NotFoundError: The job does not exist.
            AdapterError: The request failed for another reason.
        """
        ...

    async def read_batch(self, job: BatchJob, items: Sequence[BatchItem]) -> Sequence[BatchOutcome]:
        """Read the results of a job that has ended, one for each request, in order.

        Reading is free, and a broken download is repeated. The sequence may parse a result at each access, so keep
        a result that you need twice.

        Args:
            job: The job.
            items: The job's requests. Requests with only their ids are enough. Without their messages, the inputs
                of tool calls are not cleaned, and there are no warnings about the requests.

        Raises:
            OutcomeUnknownError: The results belong to other requests.
            AdapterError: The results are unavailable.
        """
        ...

    async def cancel_batch(self, job: BatchJob, *, model: str) -> bool:
        """Cancel a job. Requests that were already answered are billed. Their results can be read when the job has
        ended.

        Returns:
            False if the job does not exist, or it has ended already.
        """
        ...

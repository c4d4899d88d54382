"""The contract of adapters that take batches: the protocol, its requests and its jobs.

A batch holds many conversations for one model. The provider answers them within a day or so, mostly for half the
price, and in any order. The job belongs to the provider: it goes on without this process.

Creating a job costs money, so a request whose answer was lost is never sent again by itself. Every job bears a
mark of the caller's, and the provider's list is searched for it. Anthropic's jobs bear no mark: there, a job is
recognised by its time and its number of requests, and is certain only when its results have the caller's ids. All
other requests (looking, reading, cancelling) may be repeated any number of times.
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
"""The status of a job, in our words. The last four are ends. A job that ended in any way may have results."""


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large one job may be."""

    max_requests: int
    """The most requests."""
    max_bytes: int
    """The most bytes of all requests, as they are sent."""


class BatchItem(msgspec.Struct, frozen=True):
    """One request of a batch."""

    id: str
    """The id of its result: 1 to 64 of ``A-Z a-z 0-9 _ -``, once in a batch."""
    request: CanonicalRequest
    """The request."""


class BatchRequest(CallRequest, frozen=True, kw_only=True):
    """A new job with its requests, which all go to `model`."""

    mark: str
    """The caller's mark of the job, by which it can be found again. At most 200 characters."""
    items: tuple[BatchItem, ...]
    """The requests. `BatchAdapter.split_batch` says how many go into one job."""


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the provider describes it now."""

    id: str
    """The provider's id of the job."""
    provider: str
    """The adapter's name."""
    status: BatchStatus
    """How the job stands."""
    total: int | None = None
    """The number of requests; None if the provider doesn't say."""
    succeeded: int = 0
    """The number of requests that were answered, as far as the provider counts them before the end."""
    failed: int = 0
    """The number of requests that came to nothing, as far as the provider counts them before the end."""
    error: AdapterError | None = None
    """Why the whole job failed."""
    created_at: int | None = None
    """When the job was created, in seconds since the epoch; None if the provider doesn't say."""
    expires_at: int | None = None
    """When the provider gives the job up, in seconds since the epoch; None if the provider doesn't say."""
    mark: str | None = None
    """The caller's mark; None if the provider keeps none."""
    places: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The places of the results, in the provider's words."""
    key: str | None = None
    """The name of the key whose account has the job; None for the adapter's own key."""
    certain: bool = True
    """Whether the job is surely the caller's. Only a job without a mark that was found in a list may be another's,
    until its results are read."""
    warnings: tuple[CallWarning, ...] = ()
    """What the caller should know, such as ``found_again`` of a job whose creation was never confirmed."""
    provider_request_id: str | None = None
    """The provider's id of the request, for its support."""

    @property
    def done(self) -> bool:
        """Whether the job has come to its end, good or bad."""
        return self.status in ("completed", "failed", "expired", "cancelled")


BatchOutcome: TypeAlias = CanonicalResponse | AdapterError
"""The result of one request: a response, or the error that the request alone came to."""


@runtime_checkable
class BatchAdapter(Protocol):
    """One provider's batches. A call raises nothing but AdapterError and the loop's cancellation."""

    name: str
    """The adapter's name, which stands before the colon of its models' names."""

    def get_batch_limits(self, model: str) -> BatchLimits:
        """How large a job may be. Raises CapabilityError if the provider takes no batches."""
        ...

    def split_batch(self, items: Sequence[BatchItem]) -> tuple[int, ...]:
        """How many of the requests go into each job, in their order. Nothing is sent.

        Raises:
            CapabilityError: The provider takes no batches, or a request needs what the model lacks.
            InvalidRequestError: A request can't be written, or is larger than a whole job may be.
        """
        ...

    async def create_batch(self, request: BatchRequest, *, on_attempt: AttemptObserver | None = None) -> BatchJob:
        """The new job. It is only asked for again if surely nothing came of it.

        Raises:
            CapabilityError: The provider takes no batches. Nothing was sent.
            OutcomeUnknownError: There may be a job whose id is not known.
            AdapterError: The request failed for another reason.
        """
        ...

    async def find_batch(
        self, model: str, mark: str, count: int, since: int, *, key: str | None = None, known: Sequence[str] = ()
    ) -> BatchJob | None:
        """The job of a creation that was never confirmed, if the provider lists exactly one that may be it.

        Args:
            model: The job's model.
            mark: The job's mark.
            count: The number of its requests.
            since: When its creation began, in seconds since the epoch.
            key: The name of the key that it was created with; None for the adapter's own.
            known: The ids of jobs that the caller knows to be others.

        Raises:
            OutcomeUnknownError: Several jobs may be the one.
            AdapterError: The list can't be had.
        """
        ...

    async def retrieve_batch(self, job_id: str, *, model: str, key: str | None = None) -> BatchJob:
        """The job as it is now. The provider is asked once, for at most 30 seconds.

        Raises:
            NotFoundError: There is no such job.
            AdapterError: The request failed for another reason.
        """
        ...

    async def read_batch(self, job: BatchJob, items: Sequence[BatchItem]) -> Sequence[BatchOutcome]:
        """The results of a job that is over: one for each request, in the order of the requests.

        It costs nothing. Results that break off in the middle are asked for again. A result may be made only when
        it is taken from the sequence, so keep it if you need it twice.

        Args:
            job: The job.
            items: The job's requests. A request without messages will do; tools' inputs are then taken as they
                came, and there are no warnings about omitted parts of the request.

        Raises:
            OutcomeUnknownError: The results are those of other requests.
            AdapterError: The results can't be had.
        """
        ...

    async def cancel_batch(self, job: BatchJob, *, model: str) -> bool:
        """End a job. What was answered by then is billed, and can be read when the job is over.

        Returns:
            False if there is no such job, or it can't be ended any more.
        """
        ...

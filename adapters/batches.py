"""Batches: the contract of adapters, and the wire of jobs and their results.

A batch holds many conversations for one model. The provider answers them within about a day, usually for half the
price and in any order. The job belongs to the provider and continues without this process. Creating a job costs
money. If the answer is lost, the request is not repeated. Instead, the provider's list is searched for the
caller's mark. Anthropic's jobs have no mark: a job is found by its time and size, and confirmed by its results.
All other requests may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from callboard.bus.errors import AdapterError, CancelledError, InvalidRequestError, RequestTimeoutError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning

from .contract import AttemptObserver, CallRequest, CanonicalRequest, CanonicalResponse
from .http.errors import ErrorType, build_error, read_error_value
from .replies.usage import NOTHING_USED
from .requests.history_target import WireCall

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


# --- The wire: jobs and their results ---


class Written(NamedTuple):
    """A request of a batch on the wire."""

    id: str
    call: WireCall


class BatchLine(NamedTuple):
    """The result of one request: a reply or an error."""

    id: str
    reply: bytes | None = None
    """The body of the reply, in the form of a single call."""
    error: AdapterError | None = None


class ListPage(NamedTuple):
    """A page of the provider's list of jobs, the latest first."""

    jobs: Sequence[BatchJob]
    following: WireCall | None = None
    """The request for the next page; None if there is none."""


class BatchWire(Protocol):
    """One provider's protocol for jobs and their results."""

    @property
    def limits(self) -> BatchLimits:
        """The largest size of a job."""
        ...

    @property
    def marks(self) -> bool:
        """Whether the provider stores the caller's mark with jobs."""
        ...

    @property
    def in_lines(self) -> bool:
        """Whether results are lines of JSON. Otherwise `read_results` gets a whole reply."""
        ...

    def line(self, item: Written, model: str) -> bytes:
        """One request as part of a job."""
        ...

    def upload(self, lines: Sequence[bytes], mark: str) -> WireCall | None:
        """The request that uploads the file of requests; None if the job's creation contains them."""
        ...

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        """The request for a job, sent once."""
        ...

    def retrieve(self, job_id: str) -> WireCall:
        """The request for the state of a job."""
        ...

    def read(self, body: bytes, provider: str) -> BatchJob:
        """Read the job in a reply. Raises msgspec's decoding errors."""
        ...

    def latest(self, mark: str, since: int) -> WireCall:
        """The request for the latest jobs."""
        ...

    def read_latest(self, body: bytes, provider: str) -> ListPage: ...

    def results(self, job: BatchJob) -> Sequence[WireCall]: ...

    def read_results(self, text: bytes, provider: str) -> Iterable[BatchLine]:
        """The results in one line of a download, or in a whole reply. Raises msgspec's decoding errors."""
        ...

    def cancel(self, job_id: str) -> WireCall: ...


def fields_of(call: WireCall, *without: str) -> JsonObject:
    """The body of a request, without some of its fields."""
    body = msgspec.json.decode(call.body)
    assert isinstance(body, dict)
    return {name: value for name, value in body.items() if name not in without}


def upload_id(body: bytes) -> str:
    """The id of an uploaded file. Raises msgspec's decoding errors."""
    return _decode_upload(body).id


class _Upload(msgspec.Struct, gc=False):
    id: str


_decode_upload = msgspec.json.Decoder(_Upload).decode


def split_by_size(sizes: Sequence[int], limits: BatchLimits) -> tuple[int, ...]:
    """Divide requests into as few jobs as possible. Returns the number of requests in each. Pure."""
    counts: list[int] = []
    room = 0
    for size in sizes:
        if size + 1 > limits.max_bytes:
            raise InvalidRequestError(
                f"one request has {size:,} bytes, but a batch may have at most {limits.max_bytes:,}"
            )
        if not counts or counts[-1] == limits.max_requests or size + 1 > room:
            counts.append(0)
            room = limits.max_bytes
        counts[-1] += 1
        room -= size + 1  # one more byte for the separator
    return tuple(counts)


def not_billed(error: AdapterError) -> AdapterError:
    """Set the usage of an error to zero, because the failed request isn't billed."""
    error.usage = NOTHING_USED
    return error


def error_of_item(
    value: Json, provider: str, codes: Mapping[str, ErrorType], status: int | None = None
) -> AdapterError:
    """The error that the provider reports for one request of a job. Such a request isn't billed."""
    return not_billed(build_error(read_error_value(value), provider=provider, status=status, codes=codes))


def cancelled_item(provider: str) -> AdapterError:
    """The error of a request without an answer, because its job was cancelled."""
    return not_billed(
        CancelledError("the batch was cancelled before this request was answered", provider=provider)
    )


def expired_item(provider: str) -> AdapterError:
    """The error of a request without an answer, because its job expired."""
    message = "the batch expired before this request was answered"
    return not_billed(
        RequestTimeoutError(message, provider=provider, provider_code="batch_expired", retryable=True)
    )


def json_lines(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def moment_of(text: str | None) -> int | None:
    """Seconds since the epoch of an RFC 3339 time; None if it is invalid."""
    if not text:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return None

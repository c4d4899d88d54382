"""The wires of a provider's batches and background replies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from callboard.bus.errors import AdapterError, CancelledError, InvalidRequestError, RequestTimeoutError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage

from ..batches import BatchJob, BatchLimits
from ..contract import CanonicalRequest
from ..http.wire_call import WireCall
from ..refusals.classify import ErrorType, build_error, read_error_value
from ..replies.assembler import Assembler
from ..replies.normaliser import StreamNormaliser
from ..usage.unfinished import NOTHING_USED


class Written(NamedTuple):
    """A request of a batch on the wire."""

    id: str
    call: WireCall


class BatchLine(NamedTuple):
    """The result of one request: a reply or an error."""

    id: str
    reply: bytes | None = None
    """The body that the request would have had as its reply alone."""
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
        """Whether jobs have the caller's mark."""
        ...

    @property
    def in_lines(self) -> bool:
        """Whether results are lines of JSON. Otherwise `read_results` gets a whole reply."""
        ...

    def line(self, item: Written, model: str) -> bytes:
        """One request as part of a job."""
        ...

    def upload(self, lines: Sequence[bytes], mark: str) -> WireCall | None:
        """The upload of a file with the requests; None if the creation itself has them."""
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
        """The job. Raises msgspec's decoding errors."""
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
    """The number of requests in each job, for the fewest jobs in order. Pure."""
    counts: list[int] = []
    room = 0
    for size in sizes:
        if size + 1 > limits.max_bytes:
            raise InvalidRequestError(
                f"one request has {size:,} bytes, and a whole batch may have {limits.max_bytes:,}"
            )
        if not counts or counts[-1] == limits.max_requests or size + 1 > room:
            counts.append(0)
            room = limits.max_bytes
        counts[-1] += 1
        room -= size + 1  # and the separator from the next
    return tuple(counts)


def not_billed(error: AdapterError) -> AdapterError:
    """The error of a failed request that isn't billed."""
    error.usage = NOTHING_USED
    return error


def error_of_item(
    value: Json, provider: str, codes: Mapping[str, ErrorType], status: int | None = None
) -> AdapterError:
    """The error that the provider reports for one request. Such a request isn't billed."""
    return not_billed(build_error(read_error_value(value), provider=provider, status=status, codes=codes))


def cancelled_item(provider: str) -> AdapterError:
    """The error of a request left unanswered by its job's cancellation."""
    return not_billed(
        CancelledError("the batch was cancelled before this request was answered", provider=provider)
    )


def expired_item(provider: str) -> AdapterError:
    """The error of a request that was not answered in the job's time."""
    said = "the batch expired before this request was answered"
    return not_billed(RequestTimeoutError(said, provider=provider, provider_code="batch_expired", retryable=True))


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


# --- Background replies ---


class BackgroundStatus(NamedTuple):
    response_id: str
    """The provider's id of the reply; empty if missing."""
    done: bool
    """Whether the reply has ended, well or not."""


class NumberedNormaliser(StreamNormaliser, Protocol):
    """Reads a stream of numbered events over any number of connections. No event is read twice."""

    response_id: str
    """The provider's id of the reply; empty until known."""
    number: int | None
    """The number of the last event; None if there is none or the server sends no numbers."""
    told: bool
    """Whether `error` comes from the provider, not from the connection."""

    def reopen(self) -> None:
        """Continue on another connection after the last event. Partial data are discarded."""
        ...

    def take_whole(self, body: bytes) -> list[StreamEvent]:
        """Return the missing events from the whole reply. Raises the reply's error, or a decoding error."""
        ...


class BackgroundWire(Protocol):
    """One provider's protocol for background replies."""

    def wanted(self, request: CanonicalRequest) -> bool:
        """Whether a request wants a background reply and the server supports it."""
        ...

    def attach(self, response_id: str, after: int | None) -> WireCall:
        """The request for the stream of a reply, after the event of that number; None for all events."""
        ...

    def look(self, response_id: str) -> WireCall:
        """The request for the state of a reply."""
        ...

    def cancel(self, response_id: str) -> WireCall:
        """The request to cancel a reply."""
        ...

    def status(self, body: bytes) -> BackgroundStatus:
        """The state of a reply. Raises msgspec's decoding errors."""
        ...

    def usage(self, body: bytes, assembler: Assembler) -> TokenUsage | None:
        """The usage reported with the state of a reply; None without one."""
        ...

    def normaliser(self, assembler: Assembler) -> NumberedNormaliser:
        """A normaliser that reads the stream into the assembler."""
        ...

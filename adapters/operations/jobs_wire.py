"""The wire of a provider's batches: how jobs are written and read, and how their results are read. All is pure."""

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
    """A request of a batch, as the provider's protocol of conversations writes it."""

    id: str
    call: WireCall
    """The request as it would be sent alone."""


class BatchLine(NamedTuple):
    """The result of one request, as the provider reports it. It has a reply or an error."""

    id: str
    reply: bytes | None = None
    """The body that the request would have been answered with."""
    error: AdapterError | None = None
    """Why there is no reply."""


class ListPage(NamedTuple):
    """A page of the provider's list of jobs, the latest first."""

    jobs: Sequence[BatchJob]
    following: WireCall | None = None
    """The question for the page after it; None if there is none."""


class BatchWire(Protocol):
    """One provider's way to write jobs, and to read what it says of them and of their results."""

    @property
    def limits(self) -> BatchLimits:
        """How large a job may be."""
        ...

    @property
    def marks(self) -> bool:
        """Whether jobs bear the caller's mark."""
        ...

    @property
    def in_lines(self) -> bool:
        """Whether results come as lines of JSON. Otherwise `read_results` gets a reply whole."""
        ...

    def line(self, item: Written, model: str) -> bytes:
        """One request as it stands in a job."""
        ...

    def upload(self, lines: Sequence[bytes], mark: str) -> WireCall | None:
        """The upload of a file with the requests; None if they go with the creation itself."""
        ...

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        """The request for a job, which is sent once."""
        ...

    def retrieve(self, job_id: str) -> WireCall:
        """The question how a job stands."""
        ...

    def read(self, body: bytes, provider: str) -> BatchJob:
        """The job. Raises msgspec's decoding errors."""
        ...

    def latest(self, mark: str, since: int) -> WireCall:
        """The question for the latest jobs."""
        ...

    def read_latest(self, body: bytes, provider: str) -> ListPage:
        """A page of the latest jobs."""
        ...

    def results(self, job: BatchJob) -> Sequence[WireCall]:
        """The downloads that have the results of a job; none if it has none."""
        ...

    def read_results(self, text: bytes, provider: str) -> Iterable[BatchLine]:
        """The results in one line of a download, or in a whole reply. Raises msgspec's decoding errors."""
        ...

    def cancel(self, job_id: str) -> WireCall:
        """The request to end a job."""
        ...


def fields_of(call: WireCall, *without: str) -> JsonObject:
    """The body of a request, without some of its fields."""
    body = msgspec.json.decode(call.body)
    assert isinstance(body, dict)
    return {name: value for name, value in body.items() if name not in without}


def upload_id(body: bytes) -> str:
    """The id of a file that was uploaded. Raises msgspec's decoding errors."""
    return _decode_upload(body).id


class _Upload(msgspec.Struct, gc=False):
    id: str


_decode_upload = msgspec.json.Decoder(_Upload).decode


def split_by_size(sizes: Sequence[int], limits: BatchLimits) -> tuple[int, ...]:
    """How many of the requests go into each job, as few jobs as the order allows. Pure."""
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
        room -= size + 1  # and what parts it from the next
    return tuple(counts)


def not_billed(error: AdapterError) -> AdapterError:
    """The error of a request that came to nothing and isn't billed."""
    error.usage = NOTHING_USED
    return error


def error_of_item(
    value: Json, provider: str, codes: Mapping[str, ErrorType], status: int | None = None
) -> AdapterError:
    """The error of one request, as the provider reports it. Such a request isn't billed."""
    return not_billed(build_error(read_error_value(value), provider=provider, status=status, codes=codes))


def cancelled_item(provider: str) -> AdapterError:
    """The error of a request that its job's cancelling left unanswered."""
    return not_billed(
        CancelledError("the batch was cancelled before this request was answered", provider=provider)
    )


def expired_item(provider: str) -> AdapterError:
    """The error of a request that was not answered in the job's time."""
    said = "the batch expired before this request was answered"
    return not_billed(RequestTimeoutError(said, provider=provider, provider_code="batch_expired", retryable=True))


def json_lines(lines: Sequence[bytes]) -> bytes:
    """Lines as a file of JSON lines."""
    return b"".join(line + b"\n" for line in lines)


def moment_of(text: str | None) -> int | None:
    """Seconds since the epoch, of a time as RFC 3339 writes it; None if it is none."""
    if not text:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return None


# The wire of a provider's background replies


class BackgroundStatus(NamedTuple):
    """How a reply stands that is made in the background."""

    response_id: str
    """The provider's id of the reply; empty if it said none."""
    done: bool
    """Whether the reply is over, well or not."""


class NumberedNormaliser(StreamNormaliser, Protocol):
    """Reads a stream whose events are numbered, over any number of connections. No event is read twice."""

    response_id: str
    """The provider's id of the reply; empty before it is said."""
    number: int | None
    """The number of the last event; None if none was read, or the server numbers none."""
    told: bool
    """Whether `error` is the provider's own word, and not one of the connection."""

    def reopen(self) -> None:
        """Another connection begins behind the last event. What was half read is forgotten."""
        ...

    def take_whole(self, body: bytes) -> list[StreamEvent]:
        """The events that are missing, out of the whole reply. Raises the reply's error, or a decoding error."""
        ...


class BackgroundWire(Protocol):
    """One provider's way to make replies in the background."""

    def wanted(self, request: CanonicalRequest) -> bool:
        """Whether a request asks for a reply in the background, and the server has such."""
        ...

    def attach(self, response_id: str, after: int | None) -> WireCall:
        """The question for the stream of a reply, behind the event of that number; None is from the beginning."""
        ...

    def look(self, response_id: str) -> WireCall:
        """The question how a reply stands."""
        ...

    def cancel(self, response_id: str) -> WireCall:
        """The request to end a reply."""
        ...

    def status(self, body: bytes) -> BackgroundStatus:
        """How a reply stands. Raises msgspec's decoding errors."""
        ...

    def usage(self, body: bytes, assembler: Assembler) -> TokenUsage | None:
        """The usage that the provider reports with the state of a reply; None without one."""
        ...

    def normaliser(self, assembler: Assembler) -> NumberedNormaliser:
        """What reads the stream into the assembler."""
        ...

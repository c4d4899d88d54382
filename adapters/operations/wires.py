"""The wires of a provider's batches and background replies. Pure."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from callboard.bus.errors import (
    AdapterError,
    CancelledError,
    CapabilityError,
    InvalidRequestError,
    RequestTimeoutError,
    StreamError,
    WarningCode,
)
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage

from ..batches import BatchJob, BatchLimits
from ..contract import CanonicalRequest
from ..embeddings import EmbeddingCapabilities, EmbeddingRequest, Vector, count_tokens
from ..http.errors import ErrorType, build_error, read_error_value
from ..replies.assembler import Assembler
from ..replies.normaliser import StreamNormaliser
from ..replies.usage import NOTHING_USED, StatedCost
from ..requests.history_target import WireCall
from ..requests.settings import changed, dropped


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


# --- Background replies ---


class BackgroundStatus(NamedTuple):
    response_id: str
    """The provider's id of the reply; empty if missing."""
    done: bool
    """Whether the reply has ended, well or not."""


class NumberedNormaliser(StreamNormaliser, Protocol):
    """Reads a stream of numbered events over any number of connections. No event is read twice."""

    response_id: str
    number: int | None
    """The number of the last event; None if there is none or the server sends no numbers."""
    announced: bool
    """Whether the provider reported `error`. False if the connection failed."""

    def reopen(self) -> None:
        """Continue on another connection after the last event. Partial data are discarded."""
        ...

    def take_whole(self, body: bytes) -> list[StreamEvent]:
        """Return the missing events from the whole reply. Raises the reply's error, or a decoding error."""
        ...


class BackgroundWire(Protocol):
    """One provider's protocol for background replies."""

    def wanted(self, request: CanonicalRequest) -> bool:
        """Whether a request asks for a background reply and the server supports it."""
        ...

    def attach(self, response_id: str, after: int | None) -> WireCall:
        """The request for the stream of a reply after event number `after`; None requests all events."""
        ...

    def look(self, response_id: str) -> WireCall:
        """The request for the state of a reply."""
        ...

    def cancel(self, response_id: str) -> WireCall:
        """The request to cancel a reply."""
        ...

    def status(self, body: bytes) -> BackgroundStatus:
        """Read the state of a reply. Raises msgspec's decoding errors."""
        ...

    def usage(self, body: bytes, assembler: Assembler) -> TokenUsage | None:
        """The usage reported with the state of a reply; None without one."""
        ...

    def normaliser(self, assembler: Assembler) -> NumberedNormaliser:
        """A normaliser that reads the stream into the assembler."""
        ...


# The wire of embeddings


class EmbeddingReply(msgspec.Struct):
    vectors: list[Vector]
    input_tokens: int | None = None
    model: str | None = None
    response_id: str | None = None
    usage: bytes | None = None
    """The usage object of the reply, unchanged."""
    details: dict[str, int] | None = None
    """More counts, as in `TokenUsage`."""
    cost: StatedCost = StatedCost()


class EmbeddingWire(Protocol):
    """One provider's protocol for embeddings."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        """The capabilities of a model, by its name on the wire. For an unknown model, the capabilities that all
        models share.
        """
        ...

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        """The request on the wire. `fit_texts` has removed everything that the model lacks."""
        ...

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        """The vectors in the order of the inputs. Raises StreamError, or msgspec's decoding errors."""
        ...


def fit_texts(
    request: EmbeddingRequest, can: EmbeddingCapabilities, provider: str, estimate: Callable[[str], int]
) -> tuple[EmbeddingRequest, list[CallWarning]]:
    """The request without settings that the model does not support, and a warning for each."""
    if not request.inputs:
        raise InvalidRequestError("pass a text to embed")
    if len(request.inputs) > can.max_inputs:
        raise CapabilityError(
            f"{provider} accepts {can.max_inputs} texts in one request, not {len(request.inputs)}. Use embed_all"
        )
    if not can.supports_tokens and len(request.texts) < len(request.inputs):
        raise CapabilityError(f"{provider} accepts only texts for {request.wire_model}, not tokens")
    warnings: list[CallWarning] = []
    dimensions, input_type = request.dimensions, request.input_type
    if dimensions is not None:
        refusal = can.refusal(dimensions)
        if refusal is not None:
            raise CapabilityError(f"{request.wire_model} has no vectors of {dimensions} dimensions: {refusal}")
        if not can.supports_dimensions:
            dimensions = None  # these dimensions are the model's default
    if input_type is not None and input_type not in can.input_types:
        warnings.append(dropped("input_type", provider, f"{request.wire_model} has no {input_type!r}"))
        input_type = None
    if request.truncate and not can.supports_truncation and not can.cuts_silently:
        warnings.append(dropped("truncate", provider, "it always rejects a text that is too long"))
    if can.cuts_silently and not request.truncate and can.max_input_tokens is not None:
        sizes = [count_tokens(each, estimate) for each in request.inputs]
        long = [str(at) for at, size in enumerate(sizes) if size > can.max_input_tokens]
        if long:
            most = f"{request.wire_model} accepts {can.max_input_tokens} tokens and cuts longer texts"
            warnings.append(CallWarning(WarningCode.INPUT_MAY_BE_CUT, f"text {', '.join(long[:10])}: {most}"))
    encoding = request.encoding or can.encodings[0]
    if encoding not in can.encodings:
        warnings.append(changed("encoding", encoding, can.encodings[0], f"{provider} has no other"))
        encoding = can.encodings[0]
    fitted = msgspec.structs.replace(request, dimensions=dimensions, input_type=input_type, encoding=encoding)
    return fitted, warnings


def check_vectors(reply: EmbeddingReply, request: EmbeddingRequest) -> None:
    """Raise unless there is one vector of the requested length for each text."""
    if len(reply.vectors) != len(request.inputs):
        what = f"expected {len(request.inputs)} vectors, one for each text, but the reply has {len(reply.vectors)}"
        raise StreamError(what, retryable=False)  # not retried, because each attempt is billed
    sizes = {len(vector) for vector in reply.vectors}
    if len(sizes) > 1:
        what = f"the vectors of one reply have different dimensions: {sorted(sizes)}"
        raise StreamError(what, retryable=False)
    if request.dimensions is not None and sizes != {request.dimensions}:
        raise CapabilityError(
            f"{request.wire_model} returned {sizes.pop()} dimensions instead of {request.dimensions}: "
            f"the server ignores the parameter"
        )


_BYTES = 4

_LOOKED_AT = 64
"""The number of values of a vector that are checked. A vector with fewer than an eighth of this number is not
checked.
"""

_LEAST, _MOST = 1e-15, 1e12
"""The plausible range of nonzero values. Other data that is read as floats has values far outside."""


def read_vector(value: str | Sequence[float]) -> Vector:
    """A vector from a list of numbers or from base64 text. Raises StreamError for anything else."""
    if not isinstance(value, str):
        return from_numbers(value)
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise StreamError(f"a vector is not base64: {error}") from error
    return from_bytes(raw)


def from_bytes(raw: bytes) -> Vector:
    """A vector from little-endian float32 values.

    Some servers send int8 values under the same label. Such values would decode to nonsense, so they raise
    StreamError.
    """
    if not raw or len(raw) % _BYTES:
        raise StreamError(f"a vector of {len(raw)} bytes does not consist of float32 numbers")
    vector = array("f")
    vector.frombytes(raw)
    if sys.byteorder == "big":
        vector.byteswap()
    head = vector[:_LOOKED_AT]
    odd = sum(not (number == 0 or _LEAST < abs(number) < _MOST) for number in head)
    if len(head) >= _LOOKED_AT // 8 and odd * 4 > len(head):
        what = (
            f"a vector of {len(raw)} bytes does not consist of float32 numbers. They may be int8: request floats"
        )
        raise StreamError(what, retryable=False)
    return vector


def from_numbers(numbers: Sequence[float]) -> Vector:
    """A vector from JSON numbers, rounded to the models' float32. Raises StreamError."""
    if not numbers:
        raise StreamError("a vector is empty")
    try:
        return array("f", numbers)
    except (OverflowError, TypeError) as error:
        raise StreamError(f"a vector has an invalid number: {error}") from error

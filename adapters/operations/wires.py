"""The wires of a provider's background replies, embeddings and videos. Pure.

The wires of batches and images are in `adapters.batches` and `adapters.images`, with their contracts.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from callboard.bus.errors import CapabilityError, InvalidRequestError, StreamError, WarningCode
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage

from ..contract import CanonicalRequest
from ..embeddings import EmbeddingCapabilities, EmbeddingRequest, Vector, count_tokens
from ..images import read_size
from ..replies.assembler import Assembler
from ..replies.server_sent_events import StreamNormaliser
from ..replies.usage import StatedCost
from ..requests.content import media_type_of
from ..requests.history_target import WireCall
from ..requests.settings import changed, dropped
from ..videos import VideoCapabilities, VideoJob, VideoRequest, VideoTerms, VideoVariant

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


# --- Embeddings ---


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


# --- Videos ---


class VideoWire(Protocol):
    """One provider's protocol for video jobs."""

    def capabilities(self, model: str) -> VideoCapabilities:
        """The capabilities of a model, by its name on the wire. Raises CapabilityError if it has none."""
        ...

    def create(self, request: VideoRequest, provider: str) -> WireCall:
        """Write the request for a job. `check_video` has checked it."""
        ...

    def retrieve(self, job_id: str) -> WireCall:
        """The request for the state of a job."""
        ...

    def read(self, body: bytes, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        """Read the job in a reply. Raises msgspec's decoding errors."""
        ...

    def content(self, job: VideoJob, variant: VideoVariant) -> str:
        """The download of a variant: a path below the base URL, or an address. Raises CapabilityError."""
        ...

    def delete(self, job_id: str) -> WireCall | None:
        """The request to delete a job; None if the provider has none."""
        ...

    def latest(self) -> WireCall | None:
        """The request for the latest jobs; None if the provider doesn't list them."""
        ...

    def read_latest(self, body: bytes, provider: str, request: VideoRequest) -> Sequence[VideoJob]: ...


def check_video(request: VideoRequest, can: VideoCapabilities) -> None:
    """Raise CapabilityError if the model can't make the video as requested. No field is dropped, because each
    video costs money.
    """
    model = request.wire_model
    if not request.prompt.strip():
        raise InvalidRequestError("a video needs a prompt")
    if request.seconds is not None and can.seconds is not None and request.seconds not in can.seconds:
        offer = ", ".join(map(str, can.seconds))
        raise CapabilityError(f"{model} does not offer videos of {request.seconds} s. It offers {offer}")
    if request.size is not None and can.sizes is not None and request.size not in can.sizes:
        raise CapabilityError(f"{model} has no size {request.size!r}: it offers {', '.join(can.sizes)}")
    if can.max_prompt_characters is not None and len(request.prompt) > can.max_prompt_characters:
        raise CapabilityError(f"{model} accepts {can.max_prompt_characters} characters in a prompt")
    match can.audio, request.audio:
        case "always", False:
            raise CapabilityError(f"{model} can't make videos without sound")
        case "never", True:
            raise CapabilityError(f"{model} can't make sound")
        case _:
            pass
    if request.first_frame is not None:
        if not can.first_frame:
            raise CapabilityError(f"{model} does not accept a first frame")
        media_type = media_type_of(request.first_frame)
        if can.first_frame_media_types is not None and media_type not in can.first_frame_media_types:
            offer = ", ".join(can.first_frame_media_types)
            raise CapabilityError(
                f"{model} does not accept a first frame of {media_type or 'that kind'}. It accepts {offer}"
            )


def known_terms(terms: VideoTerms, can: VideoCapabilities) -> VideoTerms:
    """The terms of a job, with the model's defaults."""
    audio = {"always": True, "never": False}.get(can.audio, terms.audio)
    seconds = can.default_seconds if terms.seconds is None else terms.seconds
    return msgspec.structs.replace(terms, seconds=seconds, audio=None if can.audio == "never" else audio)


def video_usage(terms: VideoTerms) -> TokenUsage:
    """The billed usage of a job. A video of unknown length is billed as one ``video``.

    Other videos are billed by seconds. The rate is named by resolution and sound: ``video_second``,
    ``video_second_1080p`` (the shorter side, above 720p), with ``_silent`` appended without sound. If the price
    table lacks the rate, the job is unpriced, and the reason names the rate.
    """
    if terms.seconds is None:
        return TokenUsage(details={"video": 1})
    name = "video_second"
    size = None if terms.size is None else read_size(terms.size)
    if size is not None and min(size) > 720:
        name += f"_{min(size)}p"
    if terms.audio is False:
        name += "_silent"
    return TokenUsage(details={name: terms.seconds})

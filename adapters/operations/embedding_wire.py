"""The wire of embeddings: requests, replies, checks and vectors. Pure."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from callboard.adapters.embeddings import EmbeddingCapabilities, EmbeddingRequest, Vector
from callboard.adapters.http.wire_call import WireCall
from callboard.bus.errors import CapabilityError, InvalidRequestError, StreamError, WarningCode
from callboard.bus.values.messages import CallWarning

from ..requests.settings import changed, dropped
from ..usage.counts import StatedCost


class EmbeddingReply(msgspec.Struct):
    vectors: list[Vector]
    input_tokens: int | None = None
    model: str | None = None
    response_id: str | None = None
    usage: bytes | None = None
    """The usage object of the reply, unchanged."""
    details: dict[str, int] | None = None
    """Further counts, as in `TokenUsage`."""
    cost: StatedCost = StatedCost()


class EmbeddingWire(Protocol):
    """One provider's way to write a request and a reply."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        """The capabilities of a model, by its name on the wire; for an unknown model, the common ones."""
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
    """The request without the settings that the model lacks, and a warning for each."""
    if not request.inputs:
        raise InvalidRequestError("there is no text to embed")
    if len(request.inputs) > can.max_inputs:
        raise CapabilityError(
            f"{provider} takes {can.max_inputs} texts in one request, not {len(request.inputs)}: use embed_all"
        )
    warnings: list[CallWarning] = []
    dimensions, input_type = request.dimensions, request.input_type
    if dimensions is not None:
        refusal = can.refusal(dimensions)
        if refusal is not None:
            raise CapabilityError(f"{request.wire_model} has no vectors of {dimensions} dimensions: {refusal}")
        if not can.supports_dimensions:
            dimensions = None  # they are the model's default
    if input_type is not None and input_type not in can.input_types:
        warnings.append(dropped("input_type", provider, f"{request.wire_model} has no {input_type!r}"))
        input_type = None
    if request.truncate and not can.supports_truncation and not can.cuts_silently:
        warnings.append(dropped("truncate", provider, "it refuses a text that is too long, whatever is asked"))
    if can.cuts_silently and not request.truncate and can.max_input_tokens is not None:
        long = [str(at) for at, text in enumerate(request.inputs) if estimate(text) > can.max_input_tokens]
        if long:
            most = f"{request.wire_model} reads {can.max_input_tokens} tokens and cuts what is longer"
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
        what = f"{len(request.inputs)} texts were sent and {len(reply.vectors)} vectors came"
        raise StreamError(what, retryable=False)  # it was billed, and a retry would be again
    sizes = {len(vector) for vector in reply.vectors}
    if len(sizes) > 1:
        what = f"the vectors of one reply have different dimensions: {sorted(sizes)}"
        raise StreamError(what, retryable=False)
    if request.dimensions is not None and sizes != {request.dimensions}:
        raise CapabilityError(
            f"{request.wire_model} was asked for {request.dimensions} dimensions and gave {sizes.pop()}: "
            "the server doesn't know the parameter"
        )


_BYTES = 4

_LOOKED_AT = 64
"""The number of checked values in a vector. A vector with fewer than an eighth of them is not checked."""

_LEAST, _MOST = 1e-15, 1e12
"""The range of embedding values, except zero. Bytes that are not floats lie far outside."""


def read_vector(value: str | Sequence[float]) -> Vector:
    """A vector in either form. Raises StreamError for anything else."""
    if not isinstance(value, str):
        return from_numbers(value)
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise StreamError(f"a vector is no base64: {error}") from error
    return from_bytes(raw)


def from_bytes(raw: bytes) -> Vector:
    """A vector from little-endian float32 values.

    Some servers send int8 values under the same label, which would decode to nonsense.
    """
    if not raw or len(raw) % _BYTES:
        raise StreamError(f"a vector of {len(raw)} bytes is not made of float32 numbers")
    vector = array("f")
    vector.frombytes(raw)
    if sys.byteorder == "big":
        vector.byteswap()
    head = vector[:_LOOKED_AT]
    odd = sum(not (number == 0 or _LEAST < abs(number) < _MOST) for number in head)
    if len(head) >= _LOOKED_AT // 8 and odd * 4 > len(head):
        what = f"a vector of {len(raw)} bytes is not made of float32 numbers; they may be int8: ask for floats"
        raise StreamError(what, retryable=False)
    return vector


def from_numbers(numbers: Sequence[float]) -> Vector:
    """A vector from JSON numbers, rounded to the models' float32. Raises StreamError."""
    if not numbers:
        raise StreamError("a vector is empty")
    try:
        return array("f", numbers)
    except (OverflowError, TypeError) as error:
        raise StreamError(f"a vector has what is no number: {error}") from error

"""OpenAI's ``/v1/embeddings`` and compatible servers, and Cohere's models.

Limits from OpenAI's own package (3.54.0): 8192 tokens a text, 300,000 in a request, and 2048 texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from callboard.bus.errors import StreamError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning

from ..embeddings import EmbeddingCapabilities, EmbeddingRequest, Encoding, Vector
from ..replies.usage import reported_cost, reported_count
from ..requests.content import encode_json
from ..requests.fitted import WireCall
from ..requests.settings import merge_own_options
from .wires import EmbeddingReply, read_vector

PATH = "/v1/embeddings"

_OPENAI = EmbeddingCapabilities(
    max_inputs=2048, max_input_tokens=8192, max_request_tokens=300_000, encodings=("base64", "float")
)
_MODELS: tuple[tuple[str, EmbeddingCapabilities], ...] = (
    (r"text-embedding-3-small", msgspec.structs.replace(_OPENAI, dimensions=1536)),
    (r"text-embedding-3-large", msgspec.structs.replace(_OPENAI, dimensions=3072)),
    (r"text-embedding-ada-002", msgspec.structs.replace(_OPENAI, dimensions=1536, supports_dimensions=False)),
    (
        r"mistral-embed",
        EmbeddingCapabilities(
            max_inputs=512,
            max_input_tokens=8192,
            max_request_tokens=16_384,
            dimensions=1024,
            supports_dimensions=False,
        ),
    ),
)
"""By a regular expression for the model's name, on any server."""

UNKNOWN_MAX_INPUTS = 256
"""For servers without a known limit. A server with a lower one refuses the request, which is then split in two."""


class _Item(msgspec.Struct, gc=False):
    embedding: str | list[float]
    index: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: float | None = None
    total_tokens: float | None = None
    cost: Json = None
    is_byok: Json = None
    cost_details: Json = None
    cost_in_usd_ticks: Json = None


class _Reply(msgspec.Struct, gc=False):
    data: list[_Item]
    model: str | None = None
    id: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Reply).decode


class OpenAIEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's embeddings API, and compatible servers."""

    path: str = PATH
    """The path below the base URL."""
    dimensions_field: str = "dimensions"
    """The wire's field for dimensions."""
    base64: bool = True
    """Whether vectors are available in base64."""
    protocol: str = "openai"
    """The key of `provider_options` for all servers of this protocol."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        encodings: tuple[Encoding, ...] = ("base64", "float") if self.base64 else ("float",)
        for pattern, row in _MODELS:
            if re.search(pattern, model):
                return msgspec.structs.replace(row, encodings=encodings)
        return EmbeddingCapabilities(max_inputs=UNKNOWN_MAX_INPUTS, encodings=encodings)

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        body: JsonObject = {"model": request.wire_model, "input": list(request.inputs)}
        if self.base64 or request.encoding == "base64":
            body["encoding_format"] = request.encoding
        if request.dimensions is not None:
            body[self.dimensions_field] = request.dimensions
        merge_own_options(body, request, self.protocol, provider)
        return WireCall(self.path, encode_json(body))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        return read_reply(body)


def read_reply(body: bytes) -> EmbeddingReply:
    """Parse a reply of this protocol."""
    reply = _decode(body)
    try:
        usage = msgspec.json.decode(reply.usage, type=_Usage)
    except msgspec.ValidationError:
        usage = _Usage()
    counted = reported_count(usage.prompt_tokens if usage.prompt_tokens is not None else usage.total_tokens)
    return EmbeddingReply(
        _in_order(reply.data),
        counted,
        reply.model,
        reply.id,
        usage=bytes(reply.usage) if counted is not None else None,
        cost=reported_cost(usage.cost, usage.is_byok, usage.cost_details, usage.cost_in_usd_ticks),
    )


def _in_order(items: Sequence[_Item]) -> list[Vector]:
    """The vectors by `index`, or in their order if all indexes are equal or missing."""
    places = [item.index for item in items]
    if len(set(places)) <= 1:
        return [read_vector(item.embedding) for item in items]
    if sorted(-1 if place is None else place for place in places) != list(range(len(items))):
        what = f"the vectors' indices are {places[:10]}, not each from 0 to {len(items) - 1} once"
        raise StreamError(what, retryable=False)
    vectors: dict[int | None, Vector] = {item.index: read_vector(item.embedding) for item in items}
    return [vectors[place] for place in range(len(items))]


# --- Cohere's models ---

_TYPES: Mapping[str, str] = {
    "query": "search_query",
    "document": "search_document",
    "classification": "classification",
    "clustering": "clustering",
}
_V3 = EmbeddingCapabilities(
    max_inputs=96,
    max_input_tokens=512,
    dimensions=1024,
    supports_dimensions=False,
    input_types=tuple(_TYPES),
    supports_truncation=True,
)
_LIGHT = msgspec.structs.replace(_V3, dimensions=384)
_V4 = msgspec.structs.replace(
    _V3,
    max_input_tokens=128_000,
    dimensions=1536,
    supports_dimensions=True,
    dimension_choices=(256, 512, 1024, 1536),
)


def cohere_capabilities(model: str) -> EmbeddingCapabilities:
    """The capabilities of a Cohere model, by any provider's name."""
    if re.search(r"embed-\w+-light-v3", model):
        return _LIGHT
    return _V3 if re.search(r"embed-\w+-v3", model) else _V4


def cohere_fields(request: EmbeddingRequest) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """The fields that all providers of these models share. The models require an input type; the default
    ``document`` gives a warning.
    """
    warnings: tuple[CallWarning, ...] = ()
    if request.input_type is None:
        what = "Cohere's models require an input_type. The texts were embedded as documents"
        warnings = (CallWarning(WarningCode.INPUT_TYPE_ASSUMED, what),)
    fields: JsonObject = {
        "texts": list(request.inputs),
        "input_type": _TYPES[request.input_type or "document"],
        "truncate": "END" if request.truncate else "NONE",
    }
    if request.dimensions is not None:
        fields["output_dimension"] = request.dimensions
    return fields, warnings


class ByType(msgspec.Struct, gc=False):
    """Vectors by type. Only one type is requested."""

    floats: list[list[float]] | None = msgspec.field(default=None, name="float")

"""Cohere's ``/v2/embed``, and the same request and reply as Bedrock has them.

Limits are those of docs.cohere.com (the endpoint's reference, and its page of Embed models), seen on 2026-11-22:
96 texts a request. Of v3 models 512 tokens a text is what Cohere reads; what is longer is an error or is cut, as
`truncate` says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from adapters.contract import CallWarning
from adapters.http.wire_call import WireCall
from adapters.requests.encoding import encode_json
from adapters.requests.host_options import merge_options
from adapters.requests.settings import SharedOptions, own_options
from bus.errors import StreamError
from bus.values.json import JsonObject
from bus.values.warning_codes import WarningCode

from .contract import EmbeddingCapabilities, EmbeddingRequest
from .http import EmbeddingOnlyAdapter
from .vectors import from_numbers
from .wire import EmbeddingReply, token_count

PATH = "/v2/embed"

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
    """Of a Cohere model, under any provider's name for it."""
    if re.search(r"embed-\w+-light-v3", model):
        return _LIGHT
    return _V3 if re.search(r"embed-\w+-v3", model) else _V4


def cohere_fields(request: EmbeddingRequest) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """What both providers of these models are asked alike. Without a type, which they demand, it is documents."""
    warnings: tuple[CallWarning, ...] = ()
    if request.input_type is None:
        what = "Cohere's models want an input_type; the texts were embedded as documents"
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
    """Vectors by their type; we ask for one only."""

    floats: list[list[float]] | None = msgspec.field(default=None, name="float")


class _Billed(msgspec.Struct, gc=False):
    input_tokens: float | None = None
    image_tokens: float | None = None


class _Meta(msgspec.Struct, gc=False):
    billed_units: _Billed | None = None


class _Reply(msgspec.Struct, gc=False):
    embeddings: ByType
    id: str | None = None
    meta: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Reply).decode


class CohereEmbeddings(msgspec.Struct, frozen=True):
    """What is billed counts, not what was tokenised."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        return cohere_capabilities(model)

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        fields, warnings = cohere_fields(request)
        body: JsonObject = {"model": request.wire_model, "embedding_types": ["float"], **fields}
        for options in own_options(request, "cohere", provider):
            merge_options(body, options)
        return WireCall(PATH, encode_json(body), warnings=warnings)

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        if reply.embeddings.floats is None:
            raise StreamError("the reply holds no vectors of type float")
        billed = _billed(reply.meta)
        counted = token_count(billed.input_tokens)
        images = token_count(billed.image_tokens)
        if counted is not None:
            counted += images or 0
        return EmbeddingReply(
            [from_numbers(numbers) for numbers in reply.embeddings.floats],
            counted,
            response_id=reply.id,
            usage=bytes(reply.meta) if counted is not None else None,
            details={"image_input": images} if counted is not None and images else None,
        )


def _billed(meta: msgspec.Raw) -> _Billed:
    try:
        return msgspec.json.decode(meta, type=_Meta).billed_units or _Billed()
    except msgspec.ValidationError:
        return _Billed()


class CohereAdapter(EmbeddingOnlyAdapter):
    """Cohere's embedding models. A conversation is refused with CapabilityError.

    A request's ``provider_options["cohere"]``, or under the adapter's own name, is merged into the body. Usage is
    what Cohere bills (``billed_units``). Without an input type, which its models want, texts are embedded as
    documents, with a warning.
    """

    default_name = "cohere"
    options_type = SharedOptions
    default_base_url = "https://api.cohere.com"
    embedding_wire = CohereEmbeddings()

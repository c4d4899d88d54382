"""The requests and replies of Cohere's embedding models, under any provider's name.

The limits are those of docs.cohere.com (the endpoint's reference, and its page of Embed models), seen on
2026-11-22. A request has at most 96 texts. A v3 model reads 512 tokens of a text. A longer text is an error or is
cut, as `truncate` says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from callboard.adapters.contract import CallWarning
from callboard.adapters.embeddings import EmbeddingCapabilities, EmbeddingRequest
from callboard.bus.values.json import JsonObject
from callboard.bus.values.warning_codes import WarningCode

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
    """What a Cohere model can do, under any provider's name for it."""
    if re.search(r"embed-\w+-light-v3", model):
        return _LIGHT
    return _V3 if re.search(r"embed-\w+-v3", model) else _V4


def cohere_fields(request: EmbeddingRequest) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """The fields that both providers of these models take alike. The models demand an input type; without one it
    is ``document``, with a warning.
    """
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
    """Vectors by their type. Only one type is ever asked for."""

    floats: list[list[float]] | None = msgspec.field(default=None, name="float")

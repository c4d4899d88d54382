"""Voyage AI: OpenAI's form of a reply, and its own form of a request.

Limits from docs.voyageai.com on 2026-11-22: 1000 texts a request, and by model 120,000, 320,000 or 1,000,000
tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from callboard.bus.values.base import JsonObject

from ...embeddings import EmbeddingCapabilities, EmbeddingRequest
from ...http.adapter import HttpAdapter
from ...operations.answers import EmbeddingOnlyWire
from ...operations.openai_wires import read_reply
from ...operations.wires import EmbeddingReply
from ...requests.content import encode_json
from ...requests.history_target import WireCall
from ...requests.settings import SharedOptions, merge_own_options

PATH = "/v1/embeddings"

_FIXED = EmbeddingCapabilities(
    max_inputs=1000,
    max_input_tokens=32_000,
    max_request_tokens=120_000,
    dimensions=1024,
    supports_dimensions=False,
    input_types=("query", "document"),
    supports_truncation=True,
    encodings=("base64", "float"),
)

_CHOSEN = msgspec.structs.replace(_FIXED, supports_dimensions=True, dimension_choices=(256, 512, 1024, 2048))

_LITE = msgspec.structs.replace(_CHOSEN, max_request_tokens=1_000_000)

_MODELS: tuple[tuple[str, EmbeddingCapabilities], ...] = (
    (r"voyage-(?:3\.5|\d+)-lite$", _LITE),
    (r"voyage-(?:3\.5|[4-9])$", msgspec.structs.replace(_CHOSEN, max_request_tokens=320_000)),
    (r"voyage-(?:\d+-large|code-[3-9])$", _CHOSEN),
    (r"voyage-2$", msgspec.structs.replace(_FIXED, max_input_tokens=4000, max_request_tokens=320_000)),
    (r"voyage-law-2$", msgspec.structs.replace(_FIXED, max_input_tokens=16_000)),
    (r"voyage-code-2$", msgspec.structs.replace(_FIXED, max_input_tokens=16_000, dimensions=1536)),
)

_OF_TOMORROW = msgspec.structs.replace(_FIXED, dimensions=None, supports_dimensions=True)
"""The capabilities of an unlisted model, with the lowest of all limits."""


class VoyageEmbeddings(msgspec.Struct, frozen=True):
    def capabilities(self, model: str) -> EmbeddingCapabilities:
        if model == "voyage-3-lite":
            return msgspec.structs.replace(_FIXED, dimensions=512)
        return next((row for pattern, row in _MODELS if re.match(pattern, model)), _OF_TOMORROW)

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        body: JsonObject = {
            "model": request.wire_model,
            "input": list(request.texts),
            "truncation": request.truncate,
        }
        if request.encoding == "base64":
            body["encoding_format"] = "base64"  # the API has no name for the format of floats
        if request.input_type is not None:
            body["input_type"] = request.input_type
        if request.dimensions is not None:
            body["output_dimension"] = request.dimensions
        merge_own_options(body, request, "voyage", provider)
        return WireCall(PATH, encode_json(body))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        return read_reply(body)


class VoyageWire(EmbeddingOnlyWire):
    default_name = "voyage"
    options_type = SharedOptions
    default_base_url = "https://api.voyageai.com"
    embeddings = VoyageEmbeddings()


class VoyageAdapter(HttpAdapter):
    """Voyage AI's embedding models. A conversation is refused with CapabilityError.

    A request's ``provider_options["voyage"]``, or under the adapter's own name, is merged into the body. Without
    an input type, Voyage embeds the text unchanged.
    """

    wire_type = VoyageWire

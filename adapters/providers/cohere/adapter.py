"""Cohere's embeddings, ``/v2/embed``, as an adapter."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.bus.errors import StreamError
from callboard.bus.values.base import JsonObject

from ...embeddings import EmbeddingCapabilities, EmbeddingRequest
from ...http.adapter import HttpAdapter
from ...operations.answers import EmbeddingOnlyWire
from ...operations.openai_wires import ByType, cohere_capabilities, cohere_fields
from ...operations.wires import EmbeddingReply, from_numbers
from ...replies.usage import reported_count
from ...requests.content import encode_json
from ...requests.history_target import WireCall
from ...requests.settings import SharedOptions, merge_own_options

PATH = "/v2/embed"


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
    """The wire of Cohere's embeddings. Usage has the billed tokens, not the tokenised ones."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        return cohere_capabilities(model)

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        fields, warnings = cohere_fields(request)
        body: JsonObject = {"model": request.wire_model, "embedding_types": ["float"], **fields}
        merge_own_options(body, request, "cohere", provider)
        return WireCall(PATH, encode_json(body), warnings=warnings)

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        if reply.embeddings.floats is None:
            raise StreamError("the reply has no vectors of type float")
        billed = _billed(reply.meta)
        counted = reported_count(billed.input_tokens)
        images = reported_count(billed.image_tokens)
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


class CohereWire(EmbeddingOnlyWire):
    default_name = "cohere"
    options_type = SharedOptions
    default_base_url = "https://api.cohere.com"
    embeddings = CohereEmbeddings()


class CohereAdapter(HttpAdapter):
    """Cohere's embedding models. A conversation is refused with CapabilityError.

    A request's ``provider_options["cohere"]``, or under the adapter's own name, is merged into the body. Usage is
    Cohere's bill (``billed_units``). Its models require an input type; the default ``document`` gives a warning.
    """

    wire_type = CohereWire

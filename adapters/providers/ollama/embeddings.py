"""Ollama's ``/api/embed``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.embeddings import EmbeddingCapabilities, EmbeddingRequest
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.operations.embedding_wire import EmbeddingReply, from_numbers
from callboard.adapters.requests.encoding import encode_json
from callboard.adapters.requests.host_options import merge_own_options
from callboard.adapters.usage.counts import reported_count
from callboard.bus.values.json import Json, JsonObject

PATH = "/api/embed"


class _Reply(msgspec.Struct, gc=False):
    embeddings: list[list[float]]
    model: str | None = None
    prompt_eval_count: float | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class OllamaEmbeddings(msgspec.Struct, frozen=True):
    """Ollama's embeddings."""

    defaults: Mapping[str, Json] = {}
    """Further fields of the body, such as how long the model stays loaded."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(max_inputs=128, supports_truncation=True)

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        body: JsonObject = {
            **self.defaults,
            "model": request.wire_model,
            "input": list(request.inputs),
            "truncate": request.truncate,
        }
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        merge_own_options(body, request, "ollama", provider)
        return WireCall(PATH, encode_json(body))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        counted = reported_count(reply.prompt_eval_count)
        vectors = [from_numbers(numbers) for numbers in reply.embeddings]
        usage = msgspec.json.encode({"prompt_eval_count": counted}) if counted is not None else None
        return EmbeddingReply(vectors, counted, reply.model, usage=usage)

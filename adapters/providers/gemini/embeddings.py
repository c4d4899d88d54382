"""Gemini's ``batchEmbedContents``: a list of requests with one text each.

A batch has at most 100 (the API answers 400, "at most 100 requests can be in one batch").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from callboard.adapters.embeddings import INPUT_TYPES, EmbeddingCapabilities, EmbeddingRequest
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.operations.embedding_wire import EmbeddingReply, from_numbers
from callboard.adapters.requests.host_options import merge_own_options
from callboard.bus.errors import StreamError
from callboard.bus.values.base import Json, JsonObject

from ...requests.text import encode_json
from ...usage.counts import reported_count
from .request import model_name, path_of

_TASKS: Mapping[str, str] = {
    "query": "RETRIEVAL_QUERY",
    "document": "RETRIEVAL_DOCUMENT",
    "classification": "CLASSIFICATION",
    "clustering": "CLUSTERING",
    "similarity": "SEMANTIC_SIMILARITY",
    "question_answering": "QUESTION_ANSWERING",
    "fact_verification": "FACT_VERIFICATION",
    "code_query": "CODE_RETRIEVAL_QUERY",
}
_PREFIXES: Mapping[str, str] = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "classification": "task: classification | query: ",
    "clustering": "task: clustering | query: ",
    "similarity": "task: sentence similarity | query: ",
    "question_answering": "task: question answering | query: ",
    "fact_verification": "task: fact checking | query: ",
    "code_query": "task: code retrieval | query: ",
}
"""Prefixes for the purpose of a text, for models since gemini-embedding-2, which have no task types."""

_PREFIXED = re.compile(r"gemini-embedding-(?!001|exp)")
_WITHOUT_TASKS = re.compile(r"(?:^|/)embedding-001$")

_COMMON = EmbeddingCapabilities(
    max_inputs=100,
    max_input_tokens=2048,
    dimensions=3072,
    input_types=INPUT_TYPES,
    cuts_silently=True,
)


class _Values(msgspec.Struct, gc=False):
    values: list[float]


class _Usage(msgspec.Struct, gc=False):
    promptTokenCount: float | None = None


class _Reply(msgspec.Struct, gc=False):
    embeddings: list[_Values] | None = None
    embedding: _Values | None = None
    """The vector of one text, as ``embedContent`` returns it."""
    usageMetadata: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Reply).decode


class GeminiEmbeddings(msgspec.Struct, frozen=True):
    version: str = "v1beta"
    """The API's version in the path."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        if _PREFIXED.search(model):
            return msgspec.structs.replace(_COMMON, max_input_tokens=8192)
        if model.rpartition("/")[2].startswith("text-embedding-"):
            return msgspec.structs.replace(_COMMON, dimensions=768)
        if _WITHOUT_TASKS.search(model):
            return msgspec.structs.replace(_COMMON, dimensions=768, supports_dimensions=False, input_types=())
        return _COMMON

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        name = model_name(request.wire_model)
        shared: JsonObject = {"model": name}
        prefix = ""
        if request.input_type is not None:
            if _PREFIXED.search(name):
                prefix = _PREFIXES[request.input_type]
            else:
                shared["taskType"] = _TASKS[request.input_type]
        if request.dimensions is not None:
            shared["outputDimensionality"] = request.dimensions
        merge_own_options(shared, request, "gemini", provider)
        texts: list[Json] = [
            {**shared, "content": {"parts": [{"text": prefix + text}]}} for text in request.inputs
        ]
        path = path_of(self.version, name, "batchEmbedContents")
        return WireCall(path, encode_json({"requests": texts}))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        found = reply.embeddings if reply.embedding is None else [reply.embedding]
        if found is None:
            raise StreamError("the reply holds no embeddings")
        counted = _count(reply.usageMetadata)
        raw = bytes(reply.usageMetadata) if counted is not None else None
        return EmbeddingReply([from_numbers(item.values) for item in found], counted, usage=raw)


def _count(usage: msgspec.Raw) -> int | None:
    try:
        return reported_count(msgspec.json.decode(usage, type=_Usage).promptTokenCount)
    except msgspec.ValidationError:
        return None

"""embedContent and batchEmbedContents of Gemini clients. Pure.

The mirror image of `GeminiEmbeddings` in `adapters.providers.gemini.adapter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from callboard.adapters.embeddings import EmbeddingRequest, EmbeddingResponse, InputType
from callboard.bus.values.base import Json, JsonObject, ShortRepr
from callboard.bus.values.messages import CallWarning

from .gemini_fields import GEMINI, camel, each
from .reading import LossReport
from .wire import BadRequest

_TASKS: Mapping[str, InputType] = {
    "RETRIEVAL_QUERY": "query",
    "RETRIEVAL_DOCUMENT": "document",
    "CLASSIFICATION": "classification",
    "CLUSTERING": "clustering",
    "SEMANTIC_SIMILARITY": "similarity",
    "QUESTION_ANSWERING": "question_answering",
    "FACT_VERIFICATION": "fact_verification",
    "CODE_RETRIEVAL_QUERY": "code_query",
}


class ClientEmbeddingRequest(ShortRepr, frozen=True, kw_only=True):
    """A client's request for embeddings."""

    model: str
    """The model as the client names it."""
    requests: tuple[EmbeddingRequest, ...]
    """One request for each run of texts with the same settings, in the order of the texts. Their ids are empty."""
    single: bool
    """Whether the client used embedContent, for one vector."""
    losses: tuple[CallWarning, ...] = ()
    """The parts without a canonical form. They are reported to the client if another wire serves the request."""


class _Text(msgspec.Struct, frozen=True):
    text: str
    task: InputType | None
    dimensions: int | None
    own: JsonObject

    @property
    def settings(self) -> tuple[object, ...]:
        return self.task, self.dimensions, self.own


def read_embeddings(body: JsonObject, *, model: str, single: bool) -> ClientEmbeddingRequest:
    """Read the body of embedContent (`single`) or batchEmbedContents.

    Raises:
        BadRequest: The request can't be read.
    """
    model = model.removeprefix("models/")
    fields = camel(body, "request")
    items: Sequence[Json] = (fields,) if single else each(fields.get("requests"), "requests")
    if not items:
        raise BadRequest("requests are required", param="requests")
    losses = LossReport()
    texts = [_text(item, "request" if single else f"requests[{at}]", losses) for at, item in enumerate(items)]
    requests = []
    for _, run in groupby(texts, lambda text: text.settings):
        same = list(run)
        own = same[0].own
        requests.append(
            EmbeddingRequest(
                request_id="",
                model=model,
                inputs=tuple(text.text for text in same),
                dimensions=same[0].dimensions,
                input_type=same[0].task,
                provider_options={GEMINI: own} if own else {},
            )
        )
    return ClientEmbeddingRequest(model=model, requests=tuple(requests), single=single, losses=tuple(losses))


def _text(value: Json, where: str, losses: LossReport) -> _Text:
    fields = camel(value, where)
    content = fields.get("content")
    parts = content if isinstance(content, list) else camel(content or {}, f"{where}.content").get("parts")
    texts: list[str] = []
    for number, part in enumerate(each(parts, f"{where}.content.parts")):
        text = part if isinstance(part, str) else camel(part, f"{where}.content.parts[{number}]").get("text")
        if not isinstance(text, str):
            raise BadRequest("only text can be embedded here", param=f"{where}.content.parts[{number}]")
        texts.append(text)
    if not texts:
        raise BadRequest("content is required", param=f"{where}.content")
    task = fields.get("taskType")
    known = _TASKS.get(task) if isinstance(task, str) else None
    dimensions = fields.get("outputDimensionality")
    if dimensions is not None and (not isinstance(dimensions, int) or dimensions < 1):
        raise BadRequest("output_dimensionality must be positive", param=f"{where}.output_dimensionality")
    own: JsonObject = {name: inner for name, inner in fields.items() if name not in _KNOWN and inner is not None}
    if known is None and task not in (None, "", "TASK_TYPE_UNSPECIFIED"):
        own["taskType"] = task
    for name in own:
        losses.parameter(name)
    return _Text("\n".join(texts), known, dimensions, own)


_KNOWN = frozenset({"model", "content", "taskType", "outputDimensionality"})


def write_embeddings(client_request: ClientEmbeddingRequest, responses: Sequence[EmbeddingResponse]) -> JsonObject:
    """The body of a reply.

    Args:
        client_request: The request.
        responses: The responses to `client_request.requests`, in the same order.
    """
    vectors: list[Json] = [
        {"values": list[Json](vector.tolist())} for response in responses for vector in response.vectors
    ]
    tokens = sum(response.usage.total_input_tokens for response in responses)
    written: JsonObject = (
        {"embedding": vectors[0]} if client_request.single and vectors else {"embeddings": vectors}
    )
    return {**written, "usageMetadata": {"promptTokenCount": tokens}}

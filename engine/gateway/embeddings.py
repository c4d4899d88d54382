"""Embeddings for clients of OpenAI and Gemini: read the request, run it, and write the vectors.

OpenAI's form is the reverse of `adapters.operations.openai_wires`. A batch of Gemini's client may have other
settings for each text, so it becomes one canonical request for each run of texts with the same settings.
"""

from __future__ import annotations

import re
import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from callboard.adapters.embeddings import (
    INPUT_TYPES,
    EmbeddingInput,
    EmbeddingRequest,
    Encoding,
    InputType,
    Vector,
)
from callboard.bus import Cost
from callboard.bus.values.base import Json, JsonObject, ShortRepr
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage

from ..engine import Engine
from ..operations.embeddings_and_images import space_of
from .exchange import models_of
from .failures import BadRequest
from .gemini_contents import GEMINI, camel, each
from .wire import LossReport, a_list, an_integer, kind_of, missing, model_of, rest_of, wrong_value


class OperationResult(NamedTuple):
    """The result of a request that is not a conversation."""

    body: bytes
    """The body of the answer."""
    usage: TokenUsage
    cost: Cost
    call_id: str
    """The id of the call in the trace, or of the first of several calls."""
    warnings: Sequence[CallWarning]
    kind: bytes = b"application/json"
    """The content type of the answer."""


class ClientEmbeddingRequest(ShortRepr, frozen=True, kw_only=True):
    """A client's request for embeddings."""

    model: str
    """The model as the client names it."""
    requests: tuple[EmbeddingRequest, ...]
    """The canonical requests, in order. Their ids are empty."""
    encoding: Encoding = "float"
    """The encoding of the vectors in OpenAI's reply."""
    single: bool = False
    """Whether a Gemini client called embedContent, which returns one vector."""
    losses: tuple[CallWarning, ...] = ()
    """The parts without a canonical equivalent. If another wire serves the request, the client gets these
    warnings.
    """

    @property
    def tokens(self) -> int:
        """The number of tokens to embed: exact for token inputs, an estimate for texts."""
        inputs = [one for request in self.requests for one in request.inputs]
        characters = sum(len(one) for one in inputs if isinstance(one, str))
        return characters // CHARACTERS_OF_TOKEN + sum(len(one) for one in inputs if not isinstance(one, str))


CHARACTERS_OF_TOKEN = 4
"""The assumed number of characters of a token. With it, texts to embed are counted against a client's rate."""

Write = Callable[[ClientEmbeddingRequest, Sequence[Vector], TokenUsage], JsonObject]
"""Makes the body of a reply from the vectors, in the order of the inputs, and from the tokens of all inputs."""


async def embed(
    engine: Engine, client_request: ClientEmbeddingRequest, write: Write, tags: Mapping[str, str]
) -> OperationResult:
    models = models_of(engine._runtime, client_request.model)
    results = []
    for request in client_request.requests:
        if len(request.texts) < len(request.inputs):
            _require_same_tokens(engine, client_request.model, models)
        results.append(
            await engine.embed(
                request.inputs,
                model=models,
                dimensions=request.dimensions,
                input_type=request.input_type,
                provider_options=request.provider_options,
                tags=tags,
            )
        )
    usage, cost = results[0].usage, results[0].cost
    for result in results[1:]:
        usage, cost = usage + result.usage, cost + result.cost
    body = write(client_request, [vector for result in results for vector in result.vectors], usage)
    return OperationResult(
        msgspec.json.encode(body),
        usage,
        cost,
        next((call for result in results for call in result.calls), ""),
        [*client_request.losses, *(warning for result in results for warning in result.warnings)],
    )


def _require_same_tokens(engine: Engine, name: str, models: Sequence[str]) -> None:
    """Refuse tokens as input if the client's name is mapped to another model, because tokens are specific to a
    model.
    """
    if tuple(models) == (name,):
        return
    space = re.split("[/:]", name)[-1].lower()
    for model in models:
        entry = engine.registry.resolve(model).model
        if space_of(entry) != space:
            raise BadRequest(
                f"{name!r} is served by {entry.wire_name!r}, which may have other tokens. Send the text itself "
                "(in LangChain, check_embedding_ctx_length=False)",
                param="input",
            )


# --- OpenAI ---

_OPENAI = ("openai", "openai_compatible")
"""The protocols with OpenAI's endpoints for embeddings and images."""

_HARMLESS = ("user", "safety_identifier")

MOST_TOKEN = 2**31 - 1
"""The maximum accepted token id. No vocabulary is that large."""


def openai_options(body: JsonObject, losses: LossReport, *known: str) -> JsonObject:
    """The fields of a body without a canonical equivalent, as provider options for OpenAI's protocols."""
    fields = rest_of(body, *known)
    for name in fields:
        if name not in _HARMLESS:
            losses.parameter(name)
    return {protocol: dict(fields) for protocol in _OPENAI} if fields else {}


def read_openai(body: JsonObject) -> ClientEmbeddingRequest:
    """Read the body of ``POST /v1/embeddings``."""
    model, losses = model_of(body), LossReport()
    dimensions = an_integer(body.get("dimensions"), "dimensions", least=1)
    encoding = body.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise wrong_value("encoding_format", encoding, ("float", "base64"))
    purpose = body.get("input_type")
    kind: InputType | None = next((one for one in INPUT_TYPES if one == purpose), None)
    read = ("model", "input", "dimensions", "encoding_format", *(("input_type",) if kind else ()))
    request = EmbeddingRequest(
        request_id="",
        model=model,
        inputs=_inputs(body.get("input")),
        dimensions=dimensions,
        input_type=kind,
        provider_options=openai_options(body, losses, *read),
    )
    return ClientEmbeddingRequest(
        model=model,
        requests=(request,),
        encoding="base64" if encoding == "base64" else "float",
        losses=tuple(losses),
    )


def _inputs(value: Json) -> tuple[EmbeddingInput, ...]:
    """Texts, or tokens: one input, or an array of them."""
    if value is None:
        raise missing("input")
    inputs: list[Json] = [value] if isinstance(value, str) else a_list(value, "input")
    if not inputs:
        raise _empty_array()
    if isinstance(inputs[0], int):
        return (_input(inputs, list),)
    kind = type(inputs[0])
    return tuple(_input(one, kind) for one in inputs)


def _input(value: Json, kind: type) -> EmbeddingInput:
    match value:
        case str() if kind is str:
            if not value:
                raise BadRequest("Invalid 'input': input cannot be an empty string.", param="input")
            return value
        case list() if kind is list:
            if not value:
                raise _empty_array()
            tokens = tuple(token for token in value if type(token) is int and 0 <= token <= MOST_TOKEN)
            if len(tokens) < len(value):
                raise BadRequest("Invalid 'input': a token is not a valid integer.", param="input")
            return tokens
        case _:
            message = (
                "Invalid type for 'input': expected a string, an array of strings, an array of tokens, or an "
                f"array of token arrays, but got {kind_of(value)}."
            )
            raise BadRequest(message, param="input", code="invalid_type")


def _empty_array() -> BadRequest:
    return BadRequest("Invalid 'input': input cannot be an empty array.", param="input", code="empty_array")


def write_openai(
    client_request: ClientEmbeddingRequest, vectors: Sequence[Vector], usage: TokenUsage
) -> JsonObject:
    tokens = usage.total_input_tokens
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": _vector(vector, client_request.encoding)}
            for place, vector in enumerate(vectors)
        ],
        "model": client_request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _vector(vector: Vector, encoding: Encoding) -> Json:
    if encoding == "float":
        numbers: list[Json] = [*vector.tolist()]
        return numbers
    if sys.byteorder == "big":  # the wire's bytes are little-endian
        vector = array("f", vector)
        vector.byteswap()
    return b64encode(vector.tobytes()).decode()


# --- Gemini ---

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


class _Text(NamedTuple):
    text: str
    task: InputType | None
    dimensions: int | None
    options: JsonObject


def read_gemini(body: JsonObject, *, model: str, single: bool) -> ClientEmbeddingRequest:
    """Read the body of embedContent (`single`) or batchEmbedContents."""
    model = model.removeprefix("models/")
    fields = camel(body, "request")
    items: Sequence[Json] = (fields,) if single else each(fields.get("requests"), "requests")
    if not items:
        raise BadRequest("requests are required", param="requests")
    losses = LossReport()
    texts = [_text(item, "request" if single else f"requests[{at}]", losses) for at, item in enumerate(items)]
    requests = []
    for (task, dimensions, options), run in groupby(texts, lambda text: text[1:]):
        requests.append(
            EmbeddingRequest(
                request_id="",
                model=model,
                inputs=tuple(text.text for text in run),
                dimensions=dimensions,
                input_type=task,
                provider_options={GEMINI: options} if options else {},
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
    task_kind = _TASKS.get(task) if isinstance(task, str) else None
    dimensions = fields.get("outputDimensionality")
    if dimensions is not None and (not isinstance(dimensions, int) or dimensions < 1):
        raise BadRequest("output_dimensionality must be positive", param=f"{where}.output_dimensionality")
    options = rest_of(fields, "model", "content", "taskType", "outputDimensionality")
    if task_kind is None and task not in (None, "", "TASK_TYPE_UNSPECIFIED"):
        options["taskType"] = task
    for name in options:
        losses.parameter(name)
    return _Text("\n".join(texts), task_kind, dimensions, options)


def write_gemini(
    client_request: ClientEmbeddingRequest, vectors: Sequence[Vector], usage: TokenUsage
) -> JsonObject:
    written: list[Json] = [{"values": list[Json](vector.tolist())} for vector in vectors]
    named: JsonObject = {"embedding": written[0]} if client_request.single and written else {"embeddings": written}
    return {**named, "usageMetadata": {"promptTokenCount": usage.total_input_tokens}}

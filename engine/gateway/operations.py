"""Requests that are not conversations: embeddings, images, and calls of other programs to import.

The client's wire reads requests for embeddings and images, the engine runs them, and the wire writes the replies.
Calls of other programs arrive as OpenTelemetry spans over HTTP, and are imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec

from callboard.adapters import CallWarning, TokenUsage
from callboard.adapters.embeddings import EmbeddingRequest, EmbeddingResponse
from callboard.bus import Clock, Cost
from callboard.bus.values.base import JsonObject
from callboard.tracestore import Store

from ..engine import Engine
from ..imports.importer import Importer
from ..imports.source import ImportedCall, Item, UnreadablePart
from ..imports.sources.otlp import read_otlp
from ..operations.embeddings import EmbeddingResult, ImageOptions, space_of
from . import gemini_requests, openai_extras
from .exchange import models_of
from .failures import BadRequest


class OperationResult(NamedTuple):
    """The result of an operation."""

    body: bytes
    """The body of the answer."""
    usage: TokenUsage
    cost: Cost
    call_id: str
    """The id of the call in the trace, or of the first of several calls."""
    warnings: Sequence[CallWarning]
    kind: bytes = b"application/json"
    """The content type of the answer."""


Tags = Mapping[str, str]


async def openai_embeddings(
    engine: Engine, client_request: openai_extras.ClientEmbeddingRequest, tags: Tags
) -> OperationResult:
    """Run ``POST /v1/embeddings``."""
    result = await _embed(engine, client_request.model, client_request.request, tags)
    body = openai_extras.write_embeddings(client_request, result.vectors, result.usage)
    return _made(body, [result], client_request.losses)


async def gemini_vectors(
    engine: Engine, client_request: gemini_requests.ClientEmbeddingRequest, tags: Tags
) -> OperationResult:
    """Run ``:embedContent`` and ``:batchEmbedContents``."""
    results = [await _embed(engine, client_request.model, request, tags) for request in client_request.requests]
    responses = [
        EmbeddingResponse(
            request_id="", model=result.model, provider="", usage=result.usage, vectors=result.vectors
        )
        for result in results
    ]
    return _made(gemini_requests.write_embeddings(client_request, responses), results, client_request.losses)


async def _embed(engine: Engine, model: str, request: EmbeddingRequest, tags: Tags) -> EmbeddingResult:
    models = models_of(engine._runtime, model)
    if len(request.texts) < len(request.inputs):
        _require_same_tokens(engine, model, models)
    return await engine.embed(
        request.inputs,
        model=models,
        dimensions=request.dimensions,
        input_type=request.input_type,
        provider_options=request.provider_options,
        tags=tags,
    )


def _require_same_tokens(engine: Engine, name: str, models: Sequence[str]) -> None:
    """Refuse tokens as input if the client's name is mapped to another model, because tokens are specific to a
    model.

    Raises BadRequest.
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


def _made(body: JsonObject, results: Sequence[EmbeddingResult], losses: Sequence[CallWarning]) -> OperationResult:
    usage, cost = results[0].usage, results[0].cost
    for result in results[1:]:
        usage, cost = usage + result.usage, cost + result.cost
    return OperationResult(
        msgspec.json.encode(body),
        usage,
        cost,
        next((call for result in results for call in result.calls), ""),
        [*losses, *(warning for result in results for warning in result.warnings)],
    )


async def openai_images(
    engine: Engine, client_request: openai_extras.ClientImageRequest, tags: Tags
) -> OperationResult:
    """Run ``POST /v1/images/generations`` and ``/v1/images/edits``."""
    request = client_request.request
    models = models_of(engine._runtime, client_request.model)
    options = ImageOptions(
        n=request.n,
        size=request.size,
        aspect_ratio=request.aspect_ratio,
        quality=request.quality,
        background=request.background,
        output_format=request.output_format,
        provider_options=request.provider_options,
        tags=tags,
    )
    if request.images:
        result = await engine.edit_image(
            request.prompt, request.images, mask=request.mask, model=models, **options
        )
    else:
        result = await engine.generate_image(request.prompt, model=models, **options)
    created = engine.clock.now_us() // 1_000_000
    warnings = (*client_request.losses, *result.warnings)
    if client_request.stream:
        stream = openai_extras.write_image_stream(client_request, result.images, result.usage, created=created)
        return OperationResult(
            stream, result.usage, result.cost, result.request_id, warnings, b"text/event-stream"
        )
    body = openai_extras.write_images(client_request, result.images, result.usage, created=created)
    return OperationResult(msgspec.json.encode(body), result.usage, result.cost, result.request_id, warnings)


# --- Calls that other programs made ---


class SpanImports:
    """Imports the calls in spans that arrive at ``/v1/traces``.

    Args:
        store: The trace.
        clock: The clock.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._importer = Importer(store, "otlp", clock=clock)
        self._importing = anyio.Lock()

    async def take(self, body: bytes, kind: str, tags: Tags) -> bytes:
        """Import the calls of one request. Returns the body of its answer.

        Args:
            body: The spans, an ``ExportTraceServiceRequest``.
            kind: The content type, ``application/json`` or ``application/x-protobuf``.
            tags: Tags for the calls.

        Raises:
            BadRequest: The body can't be read.
        """
        found = await anyio.to_thread.run_sync(lambda: list(read_otlp(body, kind)))
        unread = [item for item in found if isinstance(item, UnreadablePart)]
        if unread and len(unread) == len(found):
            raise BadRequest(f"the spans can't be read: {unread[0].why}")
        async with self._importing:
            await self._importer.take([_tagged(item, tags) for item in found], "POST /v1/traces")
        if kind.partition(";")[0].strip() != "application/json":
            return b""  # an empty message of Protobuf
        partial = {"rejectedSpans": str(len(unread)), "errorMessage": unread[0].why} if unread else None
        return msgspec.json.encode({} if partial is None else {"partialSuccess": partial})


def _tagged(item: Item, tags: Tags) -> Item:
    if not tags or not isinstance(item, ImportedCall):
        return item
    return msgspec.structs.replace(item, tags={**item.tags, **tags})

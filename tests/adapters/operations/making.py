"""Adapters with a scripted network, requests, scripted replies, and forms that the standard library reads."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Mapping, Sequence
from email.parser import BytesParser
from email.policy import HTTP

import msgspec

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport
from callboard.adapters.embeddings import EmbeddingRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.images import ImageRequest, ImageWire
from callboard.adapters.operations.wires import VideoWire
from callboard.adapters.requests.history_target import WireCall
from callboard.adapters.videos import VideoRequest
from callboard.bus.clock import Clock
from callboard.bus.values.base import Json, JsonObject

from ...support.virtual_time import FakeClock


def maker(
    kind: str, *replies: FakeReply | Exception, clock: Clock | None = None, **config: object
) -> tuple[HttpAdapter, FakeTransport]:
    """An adapter of that type with a scripted network."""
    transport = FakeTransport(*replies)
    own = {"api_key_env": "OPENAI_API_KEY"} if kind == "openai_compatible" else {}
    settings = AdapterConfig(**{"api_key": "a-secret-key", **own, **config})  # type: ignore[arg-type]
    adapter = create_adapter(kind, settings, name=kind, clock=clock or FakeClock(), transport=transport)
    assert isinstance(adapter, HttpAdapter)
    return adapter, transport


def image_wire(kind: str, model: str) -> ImageWire:
    """The way in which an adapter of that type makes images with a model."""
    wire_of = maker(kind)[0].wire.other_wires().images
    assert wire_of is not None
    return wire_of(model)


def video_wire(kind: str) -> VideoWire:
    """The way in which an adapter of that type makes videos."""
    wire = maker(kind)[0].wire.other_wires().videos
    assert wire is not None
    return wire


def image_request(model: str, **changes: object) -> ImageRequest:
    fields = {"request_id": "req_1", "model": model, "prompt": "A red boat.", **changes}
    return ImageRequest(**fields)  # type: ignore[arg-type]


def video_request(model: str, **changes: object) -> VideoRequest:
    fields = {"request_id": "req_1", "model": model, "prompt": "A red boat.", **changes}
    return VideoRequest(**fields)  # type: ignore[arg-type]


def reply(value: Json, status: int = 200, **headers: str) -> FakeReply:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return FakeReply(
        msgspec.json.encode(value), status=status, headers={"content-type": "application/json", **named}
    )


def form(call: WireCall) -> tuple[dict[str, str], dict[str, list[tuple[str, str, bytes]]]]:
    """A form's fields, and for each field its files with name, media type and bytes."""
    head = f"content-type: {call.headers['content-type']}\r\n\r\n".encode()
    fields: dict[str, str] = {}
    files: dict[str, list[tuple[str, str, bytes]]] = {}
    message = BytesParser(policy=HTTP).parsebytes(head + call.body)
    assert message.is_multipart()
    for part in message.iter_parts():  # type: ignore[attr-defined]
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if part.get_filename() is None:
            fields[name] = content.decode()
        else:
            files.setdefault(name, []).append((part.get_filename(), part.get_content_type(), content))
    return fields, files


MODELS: Mapping[str, str] = {
    "openai": "text-embedding-3-small", "openai_compatible": "all-minilm", "gemini": "gemini-embedding-001",
    "ollama": "nomic-embed-text", "voyage": "voyage-3.5", "cohere": "embed-v4.0",
    "bedrock": "amazon.titan-embed-text-v2:0",
}  # fmt: skip
"""An embedding model for each type of adapter."""


def embedding_request(kind: str, *texts: str | Sequence[int], **changes: object) -> EmbeddingRequest:
    fields: dict[str, object] = {
        "request_id": "req_1", "model": f"{kind}:{MODELS[kind]}", "inputs": texts or ("hello", "world"),
        **changes,
    }  # fmt: skip
    return EmbeddingRequest(**fields)  # type: ignore[arg-type]


def packed(*numbers: float) -> str:
    """A vector in base64."""
    return b64encode(array("f", numbers).tobytes()).decode()


def answer(kind: str, vectors: Sequence[Sequence[float]], tokens: int | None = 7) -> FakeReply:
    """A successful reply."""
    lists: list[Json] = [list(vector) for vector in vectors]
    items: list[Json] = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(lists)]
    match kind:
        case "openai" | "openai_compatible" | "voyage":
            usage: JsonObject = {} if tokens is None else {"usage": {"total_tokens": tokens}}
            return reply({"object": "list", "model": MODELS[kind], "data": items, **usage})
        case "gemini":
            usage = {} if tokens is None else {"usageMetadata": {"promptTokenCount": tokens}}
            return reply({"embeddings": [{"values": one} for one in lists], **usage})
        case "ollama":
            usage = {} if tokens is None else {"prompt_eval_count": tokens}
            return reply({"model": MODELS[kind], "embeddings": lists, **usage})
        case "cohere":
            usage = {} if tokens is None else {"meta": {"billed_units": {"input_tokens": tokens}}}
            return reply(
                {"id": "i", "embeddings": {"float": lists}, "response_type": "embeddings_by_type", **usage}
            )
        case _:
            usage = {} if tokens is None else {"inputTextTokenCount": tokens}
            return reply({"embedding": lists[0], **usage})


def sent(transport: FakeTransport, number: int = 0) -> JsonObject:
    """The body of a request."""
    body: JsonObject = msgspec.json.decode(transport.requests[number].body)
    return body

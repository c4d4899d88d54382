"""A minimal wire for tests of the code around the wires: a prompt, and its reply in pieces of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from callboard.adapters import CanonicalRequest, CanonicalResponse, Message, StreamEvent, TextDelta
from callboard.bus.values.base import JsonObject
from callboard.engine.gateway.wire import (
    BadRequest,
    ClientRequest,
    ClientWire,
    Failure,
    ListedModel,
    ReplyInfo,
    ReplyWriter,
)

STATUS = {
    "invalid_request": 400,
    "context_overflow": 400,
    "content_filter": 400,
    "authentication": 401,
    "budget": 402,
    "permission": 403,
    "not_found": 404,
    "missing": 404,
    "wrong_method": 405,
    "too_large": 413,
    "rate_limit": 429,
    "server": 500,
    "unavailable": 503,
    "timeout": 504,
    "overloaded": 529,
}


def line(**fields: object) -> bytes:
    return msgspec.json.encode(fields) + b"\n"


class PlainWriter:
    def __init__(self, info: ReplyInfo) -> None:
        self._info = info

    def start(self) -> bytes:
        return line(start=self._info.id, model=self._info.model, input_tokens=self._info.input_tokens)

    def write(self, event: StreamEvent) -> bytes:
        return line(text=event.text) if isinstance(event, TextDelta) else b""

    def finish(self, response: CanonicalResponse) -> bytes:
        return line(end=str(response.stop_reason))

    def fail(self, failure: Failure) -> bytes:
        return line(failed=failure.kind, message=failure.message)

    def ping(self) -> bytes:
        return line(ping=True)


class PlainWire:
    """A request is ``{"model", "prompt", "stream", "limit"}``, and a stream has a line of JSON for each event."""

    name = "chat"
    protocol = "openai_compatible"

    def read_request(
        self, body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
    ) -> ClientRequest:
        match body:
            case {"model": str(model), "prompt": str(prompt)}:
                pass
            case _:
                raise BadRequest("model and prompt are missing", param="prompt")
        limit = body.get("limit")
        request = CanonicalRequest(
            request_id="",
            model=model,
            messages=(Message.user(prompt),),
            max_output_tokens=limit if isinstance(limit, int) else 4096,
            default_output_limit=limit is None,
        )
        return ClientRequest(model=model, request=request, stream=body.get("stream") is True, body=body)

    def stream_type(self, asked: ClientRequest) -> str:
        return "text/event-stream"

    def writer(self, asked: ClientRequest, info: ReplyInfo) -> ReplyWriter:
        return PlainWriter(info)

    def write_reply(self, asked: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
        return {"id": info.id, "model": info.model, "text": response.text}

    def write_failure(self, failure: Failure) -> tuple[int, JsonObject]:
        return STATUS[failure.kind], {"error": failure.kind, "message": failure.message}

    def write_models(self, models: Sequence[ListedModel]) -> JsonObject:
        return {"models": [model.id for model in models]}

    def write_model(self, model: ListedModel) -> JsonObject:
        return {"id": model.id}

    def write_token_count(self, tokens: int) -> JsonObject:
        return {"tokens": tokens}


WIRE: ClientWire = PlainWire()

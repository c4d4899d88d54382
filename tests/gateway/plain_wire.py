"""A minimal wire for tests of the code around the wires: a prompt, and its reply in pieces of text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters import CanonicalRequest, CanonicalResponse, Message, StreamEvent, TextDelta
from callboard.bus.values.base import JsonObject
from callboard.engine.gateway.failures import BadRequest, Failure
from callboard.engine.gateway.wire import ClientRequest, ClientWire, ReplyInfo

STATUS = {
    "invalid_request": 400, "context_overflow": 400, "content_filter": 400, "authentication": 401, "budget": 402,
    "permission": 403, "not_found": 404, "missing": 404, "wrong_method": 405, "too_large": 413, "rate_limit": 429,
    "server": 500, "unavailable": 503, "timeout": 504, "overloaded": 529,
}  # fmt: skip


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


def read_request(
    body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
) -> ClientRequest:
    match body:
        case {"model": str(model), "prompt": str(prompt)}:
            pass
        case _:
            raise BadRequest("model and prompt are missing", param="prompt")
    limit = body.get("limit")
    request = CanonicalRequest(
        request_id="", model=model, messages=(Message.user(prompt),),
        max_output_tokens=limit if isinstance(limit, int) else 4096, default_output_limit=limit is None,
    )  # fmt: skip
    return ClientRequest(model=model, request=request, stream=body.get("stream") is True, body=body)


WIRE = ClientWire(
    name="chat", protocol="openai_compatible", read_request=read_request,
    stream_type=lambda request: "text/event-stream", writer=lambda request, info: PlainWriter(info),
    write_reply=lambda request, info, response: {"id": info.id, "model": info.model, "text": response.text},
    write_failure=lambda failure: (STATUS[failure.kind], {"error": failure.kind, "message": failure.message}),
    write_models=lambda models: {"models": [model.id for model in models]},
    write_model=lambda model: {"id": model.id}, write_token_count=lambda tokens: {"tokens": tokens},
)  # fmt: skip
"""A request is ``{"model", "prompt", "stream", "limit"}``, and a stream has a line of JSON for each event."""

"""Requests and replies of Anthropic's clients, as the tests write and read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import msgspec
from anthropic import Anthropic
from anthropic.types.beta import BetaMessage

from callboard.adapters import CanonicalResponse
from callboard.adapters.providers.anthropic.request import write_request
from callboard.adapters.replies.whole import whole_events
from callboard.bus.streams.events import (
    StreamEvent,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.messages_replies import WIRE
from callboard.engine.gateway.wire import ClientRequest, ReplyInfo

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE: Json = {"type": "base64", "media_type": "image/png", "data": PNG}
PICTURE: JsonObject = {"type": "image", "source": IMAGE}
SAID: JsonObject = {"type": "text", "text": "Words"}
SEARCH_RESULT: JsonObject = {
    "type": "search_result", "source": "https://a.example", "title": "A", "content": [SAID, SAID],
    "citations": {"enabled": True},
}  # fmt: skip
PDF = "JVBERi0xLjQK"
INFO = ReplyInfo(id="01J", model="claude-opus-4-6", created=0, input_tokens=7)
USAGE = TokenUsage(input_tokens=10, output_tokens=5)
HELLO: JsonObject = {"role": "user", "content": "Hi"}
WEATHER: JsonObject = {"name": "weather", "description": "The weather", "input_schema": {"type": "object"}}


def body(*messages: Json, **fields: Json) -> JsonObject:
    said: list[Json] = list(messages) or [{"role": "user", "content": "Hi"}]
    return {"model": "claude-opus-4-6", "max_tokens": 100, "messages": said, **fields}


def user(*blocks: Json) -> JsonObject:
    return {"role": "user", "content": list(blocks)}


def read(*messages: Json, headers: Mapping[str, str] = {}, **fields: Any) -> ClientRequest:
    return WIRE.read_request(body(*messages, **fields), headers)


def written_again(asked: ClientRequest) -> JsonObject:
    """The adapter's body for a request."""
    call = write_request(asked.request, provider="anthropic", options={"auto_cache": False}, stream=asked.stream)
    sent: JsonObject = msgspec.json.decode(call.body)
    return sent


def response(*content: ContentBlock, **fields: Any) -> CanonicalResponse:
    given: dict[str, Any] = {"stop_reason": StopReason.END_TURN, "usage": USAGE, "provider": "anthropic", **fields}
    return CanonicalResponse(request_id="req_1", model="anthropic:claude", content=content, **given)


def streamed(
    reply: CanonicalResponse, events: Sequence[StreamEvent] | None = None, *, asked: ClientRequest | None = None
) -> bytes:
    writer = WIRE.writer(asked or read(), INFO)
    sent = writer.start()
    for event in whole_events(reply, "msg_1") if events is None else events:
        sent += writer.write(event)
    return sent + writer.finish(reply)


def sent_events(data: bytes) -> list[JsonObject]:
    return [msgspec.json.decode(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]


def sdk(data: bytes, *, status: int = 200, content_type: str = "text/event-stream") -> Anthropic:
    """The vendor's SDK, whose requests get these bytes as the reply."""

    def reply(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=data, headers={"content-type": content_type})

    client = httpx2.Client(transport=httpx2.MockTransport(reply))
    return Anthropic(api_key="k", base_url="http://127.0.0.1", http_client=client, max_retries=0)


def as_the_sdk_reads(data: bytes) -> BetaMessage:
    with sdk(data).beta.messages.stream(
        model="m", max_tokens=1, messages=[{"role": "user", "content": "Hi"}]
    ) as stream:
        return stream.get_final_message()


def as_a_client_gets(reply: CanonicalResponse, *, stream: bool) -> Mapping[str, Any]:
    """The message that the SDK reads from the stream or from the body."""
    return as_the_sdk_reads(streamed(reply)).to_dict() if stream else WIRE.write_reply(read(), INFO, reply)

"""Requests and replies of the Responses wire for tests, as the vendor's SDK and Callboard's adapter read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx2
import msgspec
from openai import OpenAI

from callboard.adapters import CanonicalRequest, CanonicalResponse
from callboard.adapters.providers.openai.adapter import build_request
from callboard.adapters.providers.openai.data import OPENAI
from callboard.adapters.replies.whole import whole_events
from callboard.adapters.requests.content import encode_json
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ToolUseBlock
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.responses_replies import WIRE
from callboard.engine.gateway.wire import ClientRequest, ReplyInfo

from ..support.fake_http import FakeReply
from ..support.wires import WIRES
from ..support.wires.reading import Reading, in_short, read_pieces, read_reply

INFO = ReplyInfo(id="01J", model="gpt-5", created=1)
USAGE = TokenUsage(10, 5, 4, 3, 0, 2)
PATCH = '*** Begin Patch\n*** Update File: a.py\n-"old" \\d\t\u2028\n+é 😀\n*** End Patch'
APPLY_PATCH: JsonObject = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: patch"},
}


def read(*items: Json, headers: Mapping[str, str] = {}, **fields: Json) -> ClientRequest:
    return WIRE.read_request({"model": "gpt-5", "input": list(items) or "Hi", **fields}, headers)


def build(request: CanonicalRequest, *, stream: bool = False) -> JsonObject:
    """The body that the adapter writes for a request."""
    built = build_request(request, provider="openai", quirks=OPENAI, stream=stream)
    body: JsonObject = msgspec.json.decode(encode_json(built.body))
    return body


def response(*content: ContentBlock, **fields: Any) -> CanonicalResponse:
    given: dict[str, Any] = {"stop_reason": StopReason.END_TURN, "usage": USAGE, "provider": "anthropic", **fields}
    return CanonicalResponse(request_id="req_1", model="anthropic:claude", content=content, **given)


def streamed(
    reply: CanonicalResponse, events: Iterable[StreamEvent] | None = None, asked: ClientRequest | None = None
) -> bytes:
    writer = WIRE.writer(asked or read(), INFO)
    written = [writer.start(), *map(writer.write, whole_events(reply, "m") if events is None else events)]
    return b"".join([*written, writer.finish(reply)])


def whole(reply: CanonicalResponse, asked: ClientRequest | None = None) -> JsonObject:
    body: JsonObject = msgspec.json.decode(msgspec.json.encode(WIRE.write_reply(asked or read(), INFO, reply)))
    return body


def events_of(data: bytes) -> list[JsonObject]:
    """Read the events of a stream. Their names and numbers must be correct."""
    found = [frame.partition(b"\ndata: ") for frame in data.split(b"\n\n") if frame and frame[:1] != b":"]
    events: list[JsonObject] = [msgspec.json.decode(text) for _, _, text in found]
    assert [name for name, _, _ in found] == [f"event: {event['type']}".encode() for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def last_response(data: bytes) -> JsonObject:
    found = events_of(data)[-1]["response"]
    assert isinstance(found, dict)
    return found


# --- Items ---


def user(*parts: Json) -> JsonObject:
    return {"type": "message", "role": "user", "content": list(parts)}


def function(name: str, **fields: Json) -> JsonObject:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **fields}


def call(name: str, call_id: str = "call_1", **fields: Json) -> JsonObject:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": '{"a":1}', **fields}


def output(text: Json, call_id: str = "call_1") -> JsonObject:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


REASONING: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


# --- The vendor's SDK ---


def sdk_of(body: bytes, *, status: int = 200, headers: Mapping[str, str] = {}) -> OpenAI:
    """The SDK with a server that always sends this reply."""
    kind = "text/event-stream" if body.startswith(b"event:") else "application/json"

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind, **headers}, content=body)

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return OpenAI(api_key="key", base_url="http://127.0.0.1/v1", http_client=client, max_retries=0)


# --- Our adapter ---


def read_body(body: Json) -> CanonicalResponse:
    """Read a complete reply with the adapter. Raises AdapterError."""
    given = FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})
    return _read(read_reply(WIRES[1], given, streamed=False))[0]


def read_stream(chunks: Sequence[bytes]) -> tuple[CanonicalResponse, list[StreamEvent]]:
    """Read a stream with the adapter. Raises AdapterError."""
    return _read(read_pieces(WIRES[1], chunks))


def _read(found: Reading) -> tuple[CanonicalResponse, list[StreamEvent]]:
    if found.error is not None:
        raise found.error
    return found.reply, found.events


def plain(reply: CanonicalResponse, *, opaque: bool = True, links: bool = True) -> list[object]:
    """A reply without the ids of calls, which differ. Without `opaque`, only the text and the calls are kept.

    Without `links`, blocks do not name the reasoning before them. In a stream, only the last part of a message can
    name it.
    """
    found: list[object] = [reply.stop_reason]
    for block in reply.content:
        short, raw = in_short(block), getattr(block, "provider_raw", None)
        data = dict(raw.data) if raw is not None else {}
        if isinstance(block, ToolUseBlock):
            assert isinstance(short, tuple)
            short = short[:2]
            data.pop("id", None)
        if not links:
            data = {name: value for name, value in data.items() if name not in ("after", "item_id")}
        if "_01J_" in str(data.get("item_id")):  # an id from the gateway
            data.pop("item_id")
        if not opaque:
            short = short[:2] if isinstance(short, tuple) else short
            data = {}
        found.append((short, data))
    return found


def output_of(body: JsonObject) -> list[JsonObject]:
    found = body["output"]
    assert isinstance(found, list)
    return [item for item in found if isinstance(item, dict)]

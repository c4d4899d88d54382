"""OpenAI's Responses API for clients: what it reads of requests and writes of replies, and both there and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import msgspec
from openai import OpenAI

from callboard.adapters import CanonicalResponse
from callboard.adapters.replies.whole import whole_events
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.responses_replies import WIRE
from callboard.engine.gateway.wire import ClientRequest, ReplyInfo

INFO = ReplyInfo(id="01J", model="gpt-5", created=1)
USAGE = TokenUsage(10, 5, 4, 3, 0, 2)
PATCH = '*** Begin Patch\n*** Update File: a.py\n-"old" \\d\n+é 😀\n*** End Patch'
APPLY_PATCH: JsonObject = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: patch"},
}


def read(*items: Json, headers: Mapping[str, str] = {}, **fields: Json) -> ClientRequest:
    return WIRE.read_request({"model": "gpt-5", "input": list(items) or "Hi", **fields}, headers)


def response(*content: ContentBlock, **fields: Any) -> CanonicalResponse:
    given: dict[str, Any] = {"stop_reason": StopReason.END_TURN, "usage": USAGE, "provider": "anthropic", **fields}
    return CanonicalResponse(request_id="req_1", model="anthropic:claude", content=content, **given)


def streamed(
    reply: CanonicalResponse, events: Sequence[StreamEvent] | None = None, asked: ClientRequest | None = None
) -> bytes:
    writer = WIRE.writer(asked or read(), INFO)
    written = [writer.start(), *map(writer.write, whole_events(reply, "m") if events is None else events)]
    return b"".join([*written, writer.finish(reply)])


def sdk(asked: ClientRequest, reply: CanonicalResponse, stream: bytes | None = None) -> OpenAI:
    """The vendor's SDK, with a server that answers with this reply."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if b'"stream":true' in request.content:
            data = streamed(reply, asked=asked) if stream is None else stream
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=data)
        return httpx2.Response(200, json=WIRE.write_reply(asked, INFO, reply))

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return OpenAI(api_key="key", base_url="http://127.0.0.1/v1", http_client=client, max_retries=0)


def events_of(data: bytes) -> list[JsonObject]:
    found = [frame.partition(b"\ndata: ") for frame in data.split(b"\n\n") if frame and frame[:1] != b":"]
    events: list[JsonObject] = [msgspec.json.decode(text) for _, _, text in found]
    assert [name for name, _, _ in found] == [f"event: {event['type']}".encode() for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_the_sdk_reads_text_reasoning_and_calls_the_same_whole_and_streamed() -> None:
    asked = read(tools=[APPLY_PATCH])
    reply = response(
        ThinkingBlock("Let me see.", "signature"),
        TextBlock("Hello"),
        ToolUseBlock("tu_1", "weather", {"city": "Köln"}),
        ToolUseBlock("tu_2", "apply_patch", {"input": PATCH}),
        stop_reason=StopReason.TOOL_USE,
    )
    client = sdk(asked, reply)
    whole = client.responses.create(model="gpt-5", input="Hi")
    with client.responses.stream(model="gpt-5", input="Hi") as stream:
        list(stream)
        grown = stream.get_final_response()
    assert whole.output_text == grown.output_text == "Hello"
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert whole.output[3].input == PATCH  # type: ignore[union-attr]
    dumped = [[item.model_dump(exclude_none=True) for item in each.output] for each in (whole, grown)]
    assert dumped[0] == dumped[1]

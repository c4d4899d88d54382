"""Requests and replies of Gemini's clients for the tests of their wire."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callboard.adapters import AdapterConfig, CanonicalRequest, CanonicalResponse, GeminiAdapter
from callboard.adapters.replies.whole import whole_events
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.gemini_replies import WIRE
from callboard.engine.gateway.wire import (
    ClientRequest,
    ReplyInfo,
)

from ..support.canonical_requests import PNG
from ..support.fake_http import FakeReply
from ..support.wires import WIRES
from ..support.wires.reading import Reading, read_pieces, read_reply

GEMINI = WIRES[3]
MODEL = "gemini-3-flash-preview"
INFO = ReplyInfo(id="reply-1", model="gemini-test-001", created=0, input_tokens=7)
PNG_TEXT = b64encode(PNG).decode()
SIGNATURE = "Z2VtaW5pLXNpZ25lZA=="
adapter = GeminiAdapter(AdapterConfig())


def read(*contents: Json, **fields: Json) -> ClientRequest:
    body: JsonObject = {"contents": list(contents), **fields}
    return WIRE.read_request(body, {}, model=MODEL)


def user(*parts: Json) -> JsonObject:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Json) -> JsonObject:
    return {"role": "model", "parts": list(parts)}


HELLO = user({"text": "Hello"})


def config(**fields: Json) -> CanonicalRequest:
    return read(HELLO, generationConfig=fields).request


def lost(asked: ClientRequest) -> list[str]:
    return [warning.message for warning in asked.losses]


def written(request: CanonicalRequest) -> Any:
    """The body of a request, as the adapter writes it."""
    return msgspec.json.decode(adapter.write_request(request, stream=False).body)


def again(asked: ClientRequest) -> Any:
    """The body of a client's request, as the adapter writes it."""
    return written(msgspec.structs.replace(asked.request, model=f"gemini:{asked.model}"))


AT: JsonObject = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}


def results(messages: Sequence[Message]) -> Iterator[ToolResultBlock]:
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                yield block


def declared(*names: str, **fields: Json) -> list[Json]:
    return [{"functionDeclarations": [{"name": name, **fields} for name in names]}]


def response(*content: ContentBlock, stop: StopReason = StopReason.END_TURN, **fields: Any) -> CanonicalResponse:
    given: dict[str, Any] = {"request_id": "", "model": "other:m", "provider": "other", "usage": TokenUsage(10, 5)}
    return CanonicalResponse(content=content, stop_reason=stop, **{**given, **fields})


def asks(**options: Json) -> ClientRequest:
    asked = read(HELLO)
    return msgspec.structs.replace(asked, options={"include_thoughts": True, **options})


def streamed(asked: ClientRequest, reply: CanonicalResponse, events: Sequence[StreamEvent] = ()) -> bytes:
    writer = WIRE.writer(asked, INFO)
    said = [writer.write(event) for event in events or whole_events(reply, "msg_1")]
    return b"".join([writer.start(), *said, writer.finish(reply)])


def read_written(
    asked: ClientRequest, reply: CanonicalResponse, events: Sequence[StreamEvent] = ()
) -> list[Reading]:
    """Read a reply with the adapter: written as a whole, as events, and as an array."""
    whole = FakeReply(msgspec.json.encode(reply_body(asked, reply)), headers=JSON)
    array = msgspec.structs.replace(asked, options={**asked.options, "alt": "json"})
    assert (WIRE.stream_type(asked), WIRE.stream_type(array)) == ("text/event-stream", "application/json")
    return [
        read_reply(GEMINI, whole, streamed=False),
        read_pieces(GEMINI, [streamed(asked, reply, events)]),
        read_reply(GEMINI, FakeReply(streamed(array, reply, events), headers=JSON), streamed=False),
    ]


JSON = {"content-type": "application/json"}


def without_ids(content: Sequence[ContentBlock]) -> list[ContentBlock]:
    return [
        msgspec.structs.replace(block, id="") if isinstance(block, ToolUseBlock) else block for block in content
    ]


def signed_at_its_end(content: Sequence[ContentBlock]) -> list[ContentBlock]:
    """The content in the form of a stream: the signature of a text or a thought comes after it."""
    found = without_ids(content)
    for at, block in enumerate(found):
        raw = block.provider_raw
        if isinstance(block, TextBlock) and raw is not None and "signatures" in raw.data:
            found[at] = TextBlock(block.text)
        if isinstance(block, ThinkingBlock) and block.signature:
            found[at] = msgspec.structs.replace(block, provider_raw=None)
    return found


SIGNED = ThinkingBlock("Hm.", "EqRkLong", ProviderRaw("anthropic", {}))
CALLED = ToolUseBlock("tu_1", "f", {"x": 1}, provider_raw=ProviderRaw("anthropic", {"id": "toolu_1"}))


def own(data: JsonObject) -> ProviderRaw:
    """Data of a block that only Gemini can read."""
    return ProviderRaw("gemini", data)


def reply_body(asked: ClientRequest, reply: CanonicalResponse) -> Any:
    """The body of a complete reply."""
    return WIRE.write_reply(asked, INFO, reply)

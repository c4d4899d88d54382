"""Chat Completions' chunks and replies, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec

from adapters.contract import CanonicalRequest
from adapters.providers.openai_compatible.chat.response import read_whole
from adapters.providers.openai_compatible.chat.stream import ChatNormaliser
from adapters.providers.openai_compatible.chat.wire import decode_reply
from adapters.providers.openai_compatible.quirks.servers import QUIRKS, Quirks
from adapters.replies.assembler import Assembler
from bus.errors import AdapterError
from bus.streams.events import MessageComplete, StreamEvent
from bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.messages import Message
from bus.values.usage import TokenUsage, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.readings import feed_all
from ...support.virtual_time import FakeClock

DEFAULT = QUIRKS["default"]
ESTIMATE = TokenUsage(1, 1, source=UsageSource.ESTIMATED)
USAGE: JsonObject = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
DONE = b"[DONE]"
STOP: JsonObject = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chunk(finish: Json = None, **delta: Json) -> JsonObject:
    """One chunk with one choice."""
    choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "test-2026", "choices": [choice]}


def tool(index: Json = 0, wire_id: Json = "call_1", name: Json = "look", arguments: Json = "") -> JsonObject:
    """A fragment of a tool call; what is None is left out."""
    function: JsonObject = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    fields: JsonObject = {"index": index, "id": wire_id, "type": "function", "function": function}
    return {key: value for key, value in fields.items() if value is not None}


def tools(*fragments: JsonObject) -> JsonObject:
    return chunk(tool_calls=list(fragments))


def more(arguments: Json, index: Json = 0) -> JsonObject:
    return tools(tool(index, None, None, arguments))


def reply(finish: Json = "stop", **message: Json) -> JsonObject:
    """A whole reply."""
    choice: JsonObject = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "test-2026",
        "choices": [choice],
        "usage": USAGE,
    }


def body(events: Iterable[JsonObject | bytes], *, line_end: bytes = b"\n", colon: bytes = b": ") -> bytes:
    """A streamed body. Bytes stand for an event's data as it is."""
    datas = (item if isinstance(item, bytes) else msgspec.json.encode(item) for item in events)
    return b"".join(b"data" + colon + data + line_end + line_end for data in datas)


def assembler(request: CanonicalRequest | None = None) -> Assembler:
    return Assembler(
        message_id="msg_1",
        provider="openai_compatible",
        requested_model="test",
        clock=FakeClock(),
        estimate_usage=lambda output: ESTIMATE,
        request=request,
    )


class Outcome(msgspec.Struct, frozen=True):
    """What a reply came to. complete: the last event of the message, if it got that far."""

    content: tuple[ContentBlock, ...]
    complete: MessageComplete | None
    error: AdapterError | None
    assembler: Assembler
    events: list[StreamEvent]

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def thinking(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, ThinkingBlock))

    @property
    def calls(self) -> list[tuple[Json, str, JsonObject]]:
        """The provider's id, the name and the arguments of each call."""
        blocks = [block for block in self.content if isinstance(block, ToolUseBlock)]
        return [(block.provider_raw.data["id"], block.name, block.input) for block in blocks if block.provider_raw]

    @property
    def usage(self) -> TokenUsage:
        assert self.complete is not None
        return self.complete.usage


def read_pieces(chunks: Sequence[bytes], quirks: Quirks = DEFAULT) -> Outcome:
    """Read a streamed body in those pieces, and check the invariants of what comes out."""
    into = assembler(ask())
    normaliser = ChatNormaliser(into, quirks)
    events = feed_all(normaliser, chunks)
    complete = check_stream(events) if into.complete else None
    return Outcome(into.final_content, complete, normaliser.error, into, events)


def read(*events: JsonObject | bytes, quirks: Quirks = DEFAULT, raw: bytes | None = None) -> Outcome:
    """Read a stream whole, byte by byte and in random pieces; the same must come out each time."""
    data = body(events) if raw is None else raw
    chance = random.Random(len(data))
    cuts = sorted(chance.sample(range(len(data)), min(len(data), 12)))
    whole = read_pieces([data], quirks)
    for other in (read_pieces(pieces(data, range(len(data))), quirks), read_pieces(pieces(data, cuts), quirks)):
        assert other.events == whole.events
        assert repr(other.error) == repr(whole.error)
    return whole


def read_body(value: JsonObject, quirks: Quirks = DEFAULT) -> Outcome:
    """Read a whole reply. Raises AdapterError."""
    into = assembler()
    read_whole(decode_reply(msgspec.json.encode(value)), into, quirks)
    events = into.take()
    return Outcome(into.final_content, check_stream(events), None, into, events)


def ask(*messages: Message, **changes: object) -> CanonicalRequest:
    fields: dict[str, object] = {
        "request_id": "req_1",
        "messages": messages or (Message.user("Hello"),),
        "model": "openai_compatible:test",
        "max_output_tokens": 64,
        **changes,
    }
    return CanonicalRequest(**fields)  # type: ignore[arg-type]

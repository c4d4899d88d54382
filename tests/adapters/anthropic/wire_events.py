"""The Messages API's events, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec

from adapters.anthropic.response import read_reply
from adapters.anthropic.stream import MessagesNormaliser
from adapters.assembler import Assembler
from bus.content import ContentBlock
from bus.errors import AdapterError
from bus.json_types import Json, JsonObject
from bus.stream_events import MessageComplete, StreamEvent
from bus.usage import TokenUsage, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock

ESTIMATE = TokenUsage(1, 1, source=UsageSource.ESTIMATED)
START_USAGE: JsonObject = {
    "input_tokens": 20,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 2,
    "service_tier": "standard",
}


def event(kind: str, **fields: Json) -> JsonObject:
    return {"type": kind, **fields}


def message_start(usage: Json = START_USAGE, **fields: Json) -> JsonObject:
    message: JsonObject = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
        **fields,
    }
    return event("message_start", message=message)


def start(index: int, kind: str, **fields: Json) -> JsonObject:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, kind: str, **fields: Json) -> JsonObject:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def stop(index: int) -> JsonObject:
    return event("content_block_stop", index=index)


def ending(reason: str | None = "end_turn", usage: Json = None, **fields: Json) -> list[JsonObject]:
    """The last two events. usage: ten output tokens, if not given."""
    usage = {"output_tokens": 10} if usage is None else usage
    changed: JsonObject = {"stop_reason": reason, "stop_sequence": None, **fields}
    return [event("message_delta", delta=changed, usage=usage), event("message_stop")]


def text(index: int, *fragments: str) -> list[JsonObject]:
    """A whole text block."""
    deltas = [delta(index, "text_delta", text=fragment) for fragment in fragments]
    return [start(index, "text", text=""), *deltas, stop(index)]


def tool(index: int, name: str, call_id: str, *fragments: str) -> list[JsonObject]:
    """A whole tool call, with the empty fragment that always comes first."""
    deltas = [delta(index, "input_json_delta", partial_json=fragment) for fragment in ("", *fragments)]
    return [start(index, "tool_use", id=call_id, name=name, input={}), *deltas, stop(index)]


PING = event("ping")


def body(events: Iterable[JsonObject | bytes], *, named: bool = True, line_end: bytes = b"\n") -> bytes:
    """A streamed body. Bytes stand for an event's data as it is. named: with `event:` lines."""
    parts: list[bytes] = []
    for item in events:
        data = item if isinstance(item, bytes) else msgspec.json.encode(item) + b"  "  # Anthropic pads its JSON
        name = str(item["type"]).encode() if isinstance(item, dict) else b"other"
        lines = [b"event: " + name] if named else []
        parts.append(line_end.join([*lines, b"data: " + data, b"", b""]))
    return b"".join(parts)


class Reading:
    """What became of a reply. events: all of them, if it was streamed. error: what it ended in."""

    def __init__(self, assembler: Assembler, events: Sequence[StreamEvent], error: AdapterError | None) -> None:
        self.assembler = assembler
        self.events = events
        self.error = error

    @property
    def complete(self) -> MessageComplete:
        assert self.error is None
        return check_stream(self.events)

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        return self.complete.final_content

    @property
    def warnings(self) -> list[str]:
        return [warning.code for warning in self.assembler.warnings]


def new_assembler(provider: str = "anthropic") -> Assembler:
    return Assembler(
        message_id="msg",
        provider=provider,
        requested_model="claude-test",
        clock=FakeClock(),
        estimate_usage=lambda text: ESTIMATE,
    )


def read_pieces(chunks: Iterable[bytes]) -> Reading:
    """Read a streamed body that arrives in these pieces."""
    assembler = new_assembler()
    normaliser = MessagesNormaliser(assembler)
    events: list[StreamEvent] = []
    for chunk in chunks:
        events += normaliser.feed(chunk)
    events += normaliser.close()
    return Reading(assembler, events, normaliser.error)


def read(*events: JsonObject | bytes) -> Reading:
    """Read events whole, byte by byte, at random cuts, with CRLF and without names; all must say the same."""
    streamed = body(events)
    reading = read_pieces([streamed])
    cuts = random.Random(7).sample(range(len(streamed)), k=min(len(streamed), 12))
    variants: list[list[bytes]] = [
        [streamed[at : at + 1] for at in range(len(streamed))],
        pieces(streamed, cuts),
        pieces(body(events, line_end=b"\r\n"), cuts),
        [body(events, named=False)],
    ]
    for chunks in variants:
        other = read_pieces(chunks)
        assert without_raw(other.events) == without_raw(reading.events)
        assert str(other.error) == str(reading.error)
        assert other.assembler.warnings == reading.assembler.warnings
    return reading


def without_raw(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Events without the usage's raw JSON, which is no value to compare."""
    plain: list[StreamEvent] = []
    for item in events:
        if isinstance(item, MessageComplete):
            item = msgspec.structs.replace(item, usage=msgspec.structs.replace(item.usage, raw=None))
        plain.append(item)
    return plain


def read_whole(content: Json, *, reason: Json = "end_turn", usage: Json = START_USAGE, **fields: Json) -> Reading:
    """Read a reply that was not streamed."""
    reply: JsonObject = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
        **fields,
    }
    return read_whole_bytes(msgspec.json.encode(reply))


def read_whole_bytes(reply: bytes) -> Reading:
    assembler = new_assembler()
    error: AdapterError | None = None
    try:
        read_reply(reply, assembler)
    except AdapterError as raised:
        error = raised
    return Reading(assembler, assembler.take(), error)

"""The Messages API's events, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from adapters.providers.anthropic.response import read_reply
from adapters.providers.anthropic.stream import MessagesNormaliser
from adapters.replies.assembler import Assembler
from bus.values.json import Json, JsonObject
from bus.values.usage import TokenUsage, UsageSource

from ...support.readings import Reading, feed_all, read_every_way, read_refusable
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
    return Reading(assembler, feed_all(normaliser, chunks), normaliser.error)


def read(*events: JsonObject | bytes) -> Reading:
    """Read events whole, byte by byte, at random cuts, with CRLF and without names; all must say the same."""
    return read_every_way(read_pieces, body(events), body(events, line_end=b"\r\n"), body(events, named=False))


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
    return read_refusable(assembler, lambda: read_reply(reply, assembler), Reading)

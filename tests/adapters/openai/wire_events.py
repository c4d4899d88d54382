"""The Responses API's events, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from adapters.contract import CanonicalRequest
from adapters.providers.openai.chat.response import read_reply
from adapters.providers.openai.chat.stream import ResponsesNormaliser
from adapters.providers.openai.quirks import OPENAI, Quirks
from adapters.replies.assembler import Assembler
from adapters.schemas.strict_mode import input_cleaner
from bus.values.content import ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.messages import Message
from bus.values.usage import TokenUsage, UsageSource

from ...support import readings
from ...support.readings import feed_all, read_every_way, read_refusable
from ...support.virtual_time import FakeClock

ESTIMATE = TokenUsage(1, 1, source=UsageSource.ESTIMATED)
USAGE: JsonObject = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 120,
}


def event(kind: str, **fields: Json) -> JsonObject:
    return {"type": f"response.{kind}", **fields}


def response(status: str | None = "completed", **fields: Json) -> JsonObject:
    """A response object; `output` is empty, as one backend leaves it at the end of a stream."""
    return {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-test-2026",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": USAGE,
        **fields,
    }


CREATED = event("created", response=response("in_progress", usage=None))


def ending(status: str = "completed", **fields: Json) -> JsonObject:
    return event(status, response=response(status, **fields))


def message(*texts: str, item_id: str = "msg_1", **fields: Json) -> JsonObject:
    parts: list[Json] = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": "completed",
        "content": parts,
        **fields,
    }


def call(name: str, arguments: str, number: int = 1, **fields: Json) -> JsonObject:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": name,
        "arguments": arguments,
        "status": "completed",
        **fields,
    }


def reasoning(*summary: str, number: int = 1, **fields: Json) -> JsonObject:
    parts: list[Json] = [{"type": "summary_text", "text": text} for text in summary]
    return {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": parts,
        "encrypted_content": f"secret {number}",
        **fields,
    }


def added(index: int, item: JsonObject) -> JsonObject:
    """An item is announced: without what comes later."""
    empty: JsonObject = {"content": [], "summary": [], "arguments": ""}
    start = {**item, **{name: value for name, value in empty.items() if name in item}, "status": "in_progress"}
    if "encrypted_content" in item:
        start["encrypted_content"] = "shorter"
    return event("output_item.added", output_index=index, item=start)


def done(index: int, item: JsonObject) -> JsonObject:
    return event("output_item.done", output_index=index, item=item)


def text_delta(index: int, delta: Json, part: int = 0, **fields: Json) -> JsonObject:
    return event(
        "output_text.delta",
        item_id="msg_1",
        output_index=index,
        content_index=part,
        delta=delta,
        logprobs=[],
        **fields,
    )


def arguments_delta(index: int, delta: Json, number: int = 1) -> JsonObject:
    return event("function_call_arguments.delta", item_id=f"fc_{number}", output_index=index, delta=delta)


def summary_delta(index: int, delta: str, part: int = 0) -> JsonObject:
    return event(
        "reasoning_summary_text.delta", item_id="rs_1", output_index=index, summary_index=part, delta=delta
    )


def body(events: Iterable[JsonObject | bytes], *, named: bool = True, line_end: bytes = b"\n") -> bytes:
    """A streamed body. Bytes stand for an event's data as it is. named: with `event:` lines."""
    parts: list[bytes] = []
    for item in events:
        data = item if isinstance(item, bytes) else msgspec.json.encode(item)
        name = str(item.get("type")).encode() if isinstance(item, dict) else b"other"
        lines = [b"event: " + name] if named else []
        parts.append(line_end.join([*lines, b"data: " + data, b"", b""]))
    return b"".join(parts)


class Reading(readings.Reading):
    @property
    def calls(self) -> list[ToolUseBlock]:
        return [block for block in self.content if isinstance(block, ToolUseBlock)]


def request(*messages: Message, model: str = "openai:gpt-test", **fields: object) -> CanonicalRequest:
    """A small request; `fields` are CanonicalRequest's own."""
    base = CanonicalRequest(
        request_id="req_1", messages=messages or (Message.user("Hi"),), model=model, max_output_tokens=1000
    )
    return msgspec.structs.replace(base, **fields)


def new_assembler(asked: CanonicalRequest | None = None, quirks: Quirks = OPENAI) -> Assembler:
    asked = asked or request()
    assembler = Assembler(
        message_id="msg",
        provider="openai",
        requested_model="gpt-test",
        clock=FakeClock(),
        estimate_usage=lambda text: ESTIMATE,
        request=asked,
    )
    assembler.clean_input = input_cleaner(asked.tools, by_default=quirks.strict_tools)
    return assembler


def read_pieces(
    chunks: Iterable[bytes], quirks: Quirks = OPENAI, asked: CanonicalRequest | None = None
) -> Reading:
    """Read a streamed body that arrives in these pieces."""
    assembler = new_assembler(asked, quirks)
    normaliser = ResponsesNormaliser(assembler, quirks)
    return Reading(assembler, feed_all(normaliser, chunks), normaliser.error)


def read(*events: JsonObject | bytes, quirks: Quirks = OPENAI, asked: CanonicalRequest | None = None) -> Reading:
    """Read events whole, byte by byte, at random cuts, with CRLF and without names; all must say the same."""
    return read_every_way(
        lambda chunks: read_pieces(chunks, quirks, asked),
        body(events),
        body(events, line_end=b"\r\n"),
        body(events, named=False),
    )


def read_whole(
    *output: Json, quirks: Quirks = OPENAI, asked: CanonicalRequest | None = None, **fields: Json
) -> Reading:
    """Read a reply that was not streamed. fields: of the response object."""
    return read_whole_bytes(msgspec.json.encode(response(**{"output": list(output), **fields})), quirks, asked)


def read_whole_bytes(reply: bytes, quirks: Quirks = OPENAI, asked: CanonicalRequest | None = None) -> Reading:
    assembler = new_assembler(asked, quirks)
    return read_refusable(assembler, lambda: read_reply(reply, assembler, quirks), Reading)

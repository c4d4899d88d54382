"""Ollama's lines and replies, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adapters.contract import CanonicalRequest
from adapters.providers.ollama.response import read_whole
from adapters.providers.ollama.stream import ChatNormaliser
from adapters.replies.assembler import Assembler
from adapters.usage.estimate import TokenRates
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

ESTIMATE = TokenUsage(1, 1, source=UsageSource.ESTIMATED)
METRICS: JsonObject = {
    "total_duration": 174560334,
    "load_duration": 101397084,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 13074791,
    "eval_count": 18,
    "eval_duration": 52479709,
}


def line(**message: Json) -> JsonObject:
    """One line of a stream, before the last."""
    said: JsonObject = {"role": "assistant", "content": "", **message}
    return {"model": "qwen3:8b", "created_at": "2026-10-17T23:14:07.414671Z", "message": said, "done": False}


def last(reason: str | None = "stop", metrics: JsonObject = METRICS, **message: Json) -> JsonObject:
    """The last line, or a whole reply."""
    ended: JsonObject = {} if reason is None else {"done_reason": reason}
    return {**line(**message), "done": True, **ended, **metrics}


def call(name: str, arguments: Json, wire_id: str | None = None) -> JsonObject:
    function: JsonObject = {"name": name, "arguments": arguments}
    return {"function": function} if wire_id is None else {"id": wire_id, "function": function}


def body(*lines: Json, end: bytes = b"\n") -> bytes:
    return b"".join(msgspec.json.encode(value) + end for value in lines)


def ask(*messages: Message, **changes: object) -> CanonicalRequest:
    fields: dict[str, object] = {
        "request_id": "req_1",
        "messages": messages or (Message.user("Hello"),),
        "model": "ollama:qwen3:8b",
        "max_output_tokens": 64,
        "message_id": "msg_1",
        **changes,
    }
    return CanonicalRequest(**fields)  # type: ignore[arg-type]


def assembler(request: CanonicalRequest | None = None) -> Assembler:
    return Assembler(
        message_id="msg_1",
        provider="ollama",
        requested_model="qwen3:8b",
        clock=FakeClock(),
        estimate_usage=lambda output: ESTIMATE,
        request=request or ask(),
    )


class Outcome(msgspec.Struct, frozen=True):
    """What a reply came to. complete: the last event of the message, if it got that far."""

    content: tuple[ContentBlock, ...]
    complete: MessageComplete | None
    error: AdapterError | None
    warnings: list[str]
    events: list[StreamEvent]

    @property
    def said(self) -> list[object]:
        """The blocks, plain: text, ("thinking", text), (id, name, arguments)."""
        plain: list[object] = []
        for block in self.content:
            match block:
                case TextBlock(text=text):
                    plain.append(text)
                case ThinkingBlock(text=text):
                    plain.append(("thinking", text))
                case ToolUseBlock():
                    assert block.provider_raw is not None
                    plain.append((block.provider_raw.data.get("id"), block.name, block.input))
                case _:
                    plain.append(block)
        return plain

    @property
    def end(self) -> MessageComplete:
        assert self.complete is not None
        return self.complete


def read_pieces(chunks: Sequence[bytes]) -> Outcome:
    into = assembler()
    normaliser = ChatNormaliser(into, TokenRates())
    events = feed_all(normaliser, chunks)
    return _outcome(into, events, normaliser.error)


def read(*lines: Json, raw: bytes | None = None) -> Outcome:
    """Read a streamed body whole, byte by byte, and cut in two at every place: the same must come out."""
    data = body(*lines) if raw is None else raw
    whole = read_pieces([data])
    for cuts in (range(len(data)), *([cut] for cut in range(1, len(data)))):
        other = read_pieces(pieces(data, cuts))
        assert other.events == whole.events
        assert repr(other.error) == repr(whole.error)
    return whole


def read_reply(value: Json, request: CanonicalRequest | None = None) -> Outcome:
    """Read a whole reply. Raises AdapterError."""
    into = assembler(request)
    read_whole(msgspec.json.encode(value), into, TokenRates())
    return _outcome(into, into.take(), None)


def _outcome(into: Assembler, events: list[StreamEvent], error: AdapterError | None) -> Outcome:
    complete = check_stream(events) if into.complete else None
    return Outcome(into.final_content, complete, error, [warning.code for warning in into.warnings], events)

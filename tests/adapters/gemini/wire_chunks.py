"""Chunks of generateContent, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec

from adapters.assembler import Assembler
from adapters.gemini.response import read_reply
from adapters.gemini.stream import GeminiNormaliser
from bus.content import ContentBlock, ToolUseBlock
from bus.errors import AdapterError
from bus.json_types import Json, JsonObject
from bus.stream_events import MessageComplete, StreamEvent
from bus.usage import TokenUsage, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock

ESTIMATE = TokenUsage(1, 1, source=UsageSource.ESTIMATED)
MODEL = "gemini-2.5-flash"
"""The model that all replies were asked of."""

IDENTITY: JsonObject = {"modelVersion": "gemini-test-001", "responseId": "reply-1"}
USAGE: JsonObject = {"promptTokenCount": 20, "candidatesTokenCount": 10, "totalTokenCount": 30}


def chunk(*parts: Json, finish: Json = None, usage: Json = None, **fields: Json) -> JsonObject:
    """A chunk with one candidate. finish: its finish reason. fields: of the candidate."""
    candidate: JsonObject = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **fields}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **({"usageMetadata": usage} if usage else {}), **IDENTITY}


def text(said: str, signature: str | None = None) -> JsonObject:
    return {"text": said, **({"thoughtSignature": signature} if signature else {})}


def thought(said: str, signature: str | None = None) -> JsonObject:
    return {"thought": True, **text(said, signature)}


def call(name: str, signature: str | None = None, **fields: Json) -> JsonObject:
    part: JsonObject = {"functionCall": {"name": name, **fields}}
    return {**part, "thoughtSignature": signature} if signature else part


END = chunk(text(""), finish="STOP", usage=USAGE)


def body(chunks: Iterable[JsonObject | bytes], *, line_end: bytes = b"\r\n") -> bytes:
    """A streamed body. Bytes stand for an event's data as it is."""
    data = [item if isinstance(item, bytes) else msgspec.json.encode(item) for item in chunks]
    return b"".join(b"data: " + item + 2 * line_end for item in data)


class Reading:
    """What became of a reply. events: all of them. error: what it ended in."""

    def __init__(self, assembler: Assembler, events: Sequence[StreamEvent], error: AdapterError | None) -> None:
        self.assembler = assembler
        self.events = events
        self.error = error

    @property
    def complete(self) -> MessageComplete:
        assert self.error is None, self.error
        return check_stream(self.events)

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        return self.complete.final_content

    @property
    def calls(self) -> list[tuple[str, object, bool]]:
        blocks = [block for block in self.content if isinstance(block, ToolUseBlock)]
        return [(block.name, block.input, block.incomplete) for block in blocks]

    @property
    def warnings(self) -> list[str]:
        return [warning.code for warning in self.assembler.warnings]


def new_assembler() -> Assembler:
    return Assembler(
        message_id="msg",
        provider="gemini",
        requested_model=MODEL,
        clock=FakeClock(),
        estimate_usage=lambda text: ESTIMATE,
    )


def read_pieces(chunks: Iterable[bytes]) -> Reading:
    """Read a streamed body that arrives in these pieces."""
    assembler = new_assembler()
    normaliser = GeminiNormaliser(assembler)
    events: list[StreamEvent] = []
    for piece in chunks:
        events += normaliser.feed(piece)
    events += normaliser.close()
    return Reading(assembler, events, normaliser.error)


def read(*chunks: JsonObject | bytes) -> Reading:
    """Read chunks whole, byte by byte, cut at random and with other line ends; all must say the same."""
    streamed = body(chunks)
    reading = read_pieces([streamed])
    cuts = random.Random(7).sample(range(len(streamed)), k=min(len(streamed), 12))
    variants = [
        [streamed[at : at + 1] for at in range(len(streamed))],
        pieces(streamed, cuts),
        pieces(body(chunks, line_end=b"\n"), cuts),
        [streamed.rstrip()],
    ]
    for variant in variants:
        other = read_pieces(variant)
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


def read_whole(*parts: Json, finish: Json = "STOP", usage: Json = USAGE, **fields: Json) -> Reading:
    """Read a reply that was not streamed."""
    return read_whole_bytes(msgspec.json.encode(chunk(*parts, finish=finish, usage=usage, **fields)))


def read_whole_bytes(reply: bytes) -> Reading:
    assembler = new_assembler()
    error: AdapterError | None = None
    try:
        read_reply(reply, assembler)
    except AdapterError as raised:
        error = raised
    return Reading(assembler, assembler.take(), error)

"""Chunks of generateContent, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from adapters.providers.gemini.chat.response import read_reply
from adapters.providers.gemini.chat.stream import GeminiNormaliser
from adapters.replies.assembler import Assembler
from bus.values.content import ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.usage import TokenUsage, UsageSource

from ...support import readings
from ...support.readings import feed_all, read_every_way, read_refusable
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


class Reading(readings.Reading):
    @property
    def calls(self) -> list[tuple[str, object, bool]]:
        blocks = [block for block in self.content if isinstance(block, ToolUseBlock)]
        return [(block.name, block.input, block.incomplete) for block in blocks]


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
    return Reading(assembler, feed_all(normaliser, chunks), normaliser.error)


def read(*chunks: JsonObject | bytes) -> Reading:
    """Read chunks whole, byte by byte, cut at random and with other line ends; all must say the same."""
    streamed = body(chunks)
    return read_every_way(read_pieces, streamed, body(chunks, line_end=b"\n"), streamed.rstrip())


def read_whole(*parts: Json, finish: Json = "STOP", usage: Json = USAGE, **fields: Json) -> Reading:
    """Read a reply that was not streamed."""
    return read_whole_bytes(msgspec.json.encode(chunk(*parts, finish=finish, usage=usage, **fields)))


def read_whole_bytes(reply: bytes) -> Reading:
    assembler = new_assembler()
    return read_refusable(assembler, lambda: read_reply(reply, assembler), Reading)

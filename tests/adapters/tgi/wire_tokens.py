"""TGI's events and replies, written by hand from wire facts; and the ways to read them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adapters.contract import CanonicalRequest
from adapters.providers.tgi.prompt import TEMPLATES, PromptTemplate
from adapters.providers.tgi.request import stop_sequences
from adapters.providers.tgi.response import ReplyReader, read_whole
from adapters.providers.tgi.stream import TokenNormaliser
from adapters.replies.assembler import Assembler
from adapters.usage.estimate import TokenRates
from bus.errors import AdapterError
from bus.streams.events import MessageComplete, StreamEvent
from bus.values.content import TextBlock
from bus.values.json import Json, JsonObject
from bus.values.messages import Message
from bus.values.usage import TokenUsage, UsageSource

from ...support.fake_http import pieces
from ...support.invariants import check_stream
from ...support.readings import feed_all
from ...support.virtual_time import FakeClock

PLAIN = TEMPLATES["plain"]


def token(text: str, *, special: bool = False) -> JsonObject:
    """One event before the last."""
    said: JsonObject = {"id": 7, "text": text, "logprob": None, "special": special}
    return {"index": 1, "token": said, "generated_text": None, "details": None}


def details(reason: Json = "eos_token", **fields: Json) -> JsonObject:
    return {"finish_reason": reason, "generated_tokens": 4, "input_length": 9, "seed": None, **fields}


def end(text: str, found: Json, last: str = "</s>", *, special: bool = True) -> JsonObject:
    """The last event: its own token, the whole text, and the details."""
    return {**token(last, special=special), "generated_text": text, "details": found}


def body(*events: Json, colon: bytes = b": ") -> bytes:
    return b"".join(b"data" + colon + msgspec.json.encode(event) + b"\n\n" for event in events)


def ask(*messages: Message, **changes: object) -> CanonicalRequest:
    fields: dict[str, object] = {
        "request_id": "req_1",
        "messages": messages or (Message.user("Hello"),),
        "model": "tgi:any",
        "max_output_tokens": 64,
        "message_id": "msg_1",
        **changes,
    }
    return CanonicalRequest(**fields)  # type: ignore[arg-type]


class Outcome(msgspec.Struct, frozen=True):
    """What a reply came to. complete: the last event of the message, if it got that far."""

    text: str
    complete: MessageComplete | None
    error: AdapterError | None
    warnings: list[str]
    events: list[StreamEvent]

    @property
    def end(self) -> MessageComplete:
        assert self.complete is not None
        return self.complete


def reader(request: CanonicalRequest | None, template: PromptTemplate) -> ReplyReader:
    asked = request or ask()
    into = Assembler(
        message_id="msg_1",
        provider="tgi",
        requested_model="any",
        clock=FakeClock(),
        estimate_usage=lambda output: TokenUsage(1, 1, source=UsageSource.ESTIMATED),
        request=asked,
    )
    return ReplyReader(into, template, stop_sequences(asked, template, 4), TokenRates())


def read_pieces(
    chunks: Sequence[bytes], request: CanonicalRequest | None = None, template: PromptTemplate = PLAIN
) -> Outcome:
    source = reader(request, template)
    normaliser = TokenNormaliser(source)
    events = feed_all(normaliser, chunks)
    return _outcome(source.assembler, events, normaliser.error)


def read(
    *events: Json,
    raw: bytes | None = None,
    request: CanonicalRequest | None = None,
    template: PromptTemplate = PLAIN,
    cut: int | None = None,
) -> Outcome:
    """Read a streamed body whole, byte by byte, and cut in two at every place: the same must come out.

    cut: at this place alone, for one of many examples; beyond the body's end it begins anew.
    """
    data = body(*events) if raw is None else raw
    whole = read_pieces([data], request, template)
    places = range(1, len(data)) if cut is None else [1 + cut % (len(data) - 1)]
    for cuts in (range(len(data)), *([place] for place in places)):
        other = read_pieces(pieces(data, cuts), request, template)
        assert other.events == whole.events
        assert repr(other.error) == repr(whole.error)
    return whole


def read_reply(value: Json, request: CanonicalRequest | None = None, template: PromptTemplate = PLAIN) -> Outcome:
    """Read a whole reply. Raises AdapterError."""
    source = reader(request, template)
    read_whole(msgspec.json.encode(value), source)
    return _outcome(source.assembler, source.assembler.take(), None)


def _outcome(into: Assembler, events: list[StreamEvent], error: AdapterError | None) -> Outcome:
    complete = check_stream(events) if into.complete else None
    text = "".join(block.text for block in into.final_content if isinstance(block, TextBlock))
    return Outcome(text, complete, error, [warning.code for warning in into.warnings], events)

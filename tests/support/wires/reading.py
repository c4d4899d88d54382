"""Reads replies through their adapter, as a whole and in any pieces, which must give the same result."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import anyio
import msgspec

from callboard.adapters.contract import CanonicalRequest, CanonicalResponse
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import MessageComplete, StreamEvent, ToolUseInputDelta
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import TokenUsage

from ..depth import is_quick
from ..fake_http import HANG, FakeReply, FakeTransport, Step, pieces
from ..invariants import check_stream
from ..virtual_time import FakeClock, run_virtual
from .wire import Event, Wire


class Reading:
    """The result of reading a reply."""

    events: list[StreamEvent]
    """The events of a stream; empty for a plain reply."""

    error: AdapterError | None
    """The error of the call, if it failed."""

    response: CanonicalResponse | None
    """The response that the caller gets."""

    def __init__(
        self, events: list[StreamEvent], error: AdapterError | None, response: CanonicalResponse | None
    ) -> None:
        self.events = events
        self.error = error
        self.response = response

    @property
    def last(self) -> MessageComplete:
        """The last event of the stream, also after an error."""
        return check_stream(self.events)

    @property
    def reply(self) -> CanonicalResponse:
        """The response of a call that must have succeeded."""
        assert self.error is None, self.error
        assert self.response is not None
        return self.response

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        return self.reply.content if self.error is None else self.error.content

    @property
    def said(self) -> list[object]:
        """The blocks in the form of `in_short`."""
        return [in_short(block) for block in self.content]

    @property
    def kept(self) -> list[JsonObject | None]:
        """The `provider_raw` of each block."""
        return [raw and raw.data for raw in (getattr(block, "provider_raw", None) for block in self.content)]

    @property
    def deltas(self) -> list[str]:
        """The texts of the stream's deltas of all kinds."""
        return [event.text for event in self.events if hasattr(event, "text")]

    @property
    def fragments(self) -> list[str]:
        """The fragments of tool arguments."""
        return [event.partial_json for event in self.events if isinstance(event, ToolUseInputDelta)]

    @property
    def usage(self) -> TokenUsage:
        return self.reply.usage

    @property
    def warnings(self) -> list[str]:
        """The codes of the reply's warnings, without that of an estimate."""
        return [warning.code for warning in self.reply.warnings if warning.code != "usage_estimated"]


def in_short(block: ContentBlock) -> object:
    """A block in a short form without Callboard's ids.

    Text is a str. Reasoning is ``("thinking", text)``, with its signature if it has one. A tool call is ``(name,
    input, the provider's id)``; an incomplete one is ``(name, the text of its arguments)``, or has its input
    instead of that text. An opaque block is ``{kind: data}``, and an image is ``("image", its bytes or address,
    its metadata)``.
    """
    match block:
        case TextBlock():
            return block.text
        case ThinkingBlock():
            return ("thinking", block.text, *([block.signature] if block.signature is not None else []))
        case RedactedThinkingBlock():
            return ("redacted", block.data)
        case ToolUseBlock(incomplete=True):
            return (block.name, block.raw_arguments or block.input)
        case ToolUseBlock():
            return (block.name, block.input, block.provider_raw and block.provider_raw.data.get("id"))
        case OpaqueBlock():
            return {block.kind: block.provider_raw.data}
        case ImageBlock():
            return ("image", block.data or block.url, block.provider_raw and block.provider_raw.data)
    raise AssertionError(block)


def asked(wire: Wire, **changes: object) -> CanonicalRequest:
    """A small request to a wire's model."""
    fields: dict[str, object] = {
        "request_id": "req_1", "message_id": "msg_1", "messages": (), "model": f"{wire.name}:{wire.model}",
        "max_output_tokens": 64, "max_retries": 0, **changes,
    }  # fmt: skip
    if not fields["messages"]:
        fields["messages"] = (wire.hello,)
    return CanonicalRequest(**fields)  # type: ignore[arg-type]  # a test names its own fields


def read_reply(wire: Wire, reply: FakeReply, *, streamed: bool, seconds: float = 60, **changes: object) -> Reading:
    """Read a reply that arrives unchanged."""
    events: list[StreamEvent] = []

    async def read() -> Reading:
        adapter = wire.make(FakeTransport(reply), FakeClock(), **changes.pop("config", {}))  # type: ignore[arg-type]
        request = asked(wire, **changes)
        try:
            if not streamed:
                return Reading(events, None, await adapter.complete(request))
            stream = adapter.stream(request)
            with anyio.move_on_after(seconds):
                async for event in stream:
                    events.append(event)  # noqa: PERF401  (what came before an error counts)
            return Reading(events, None, stream.response)
        except AdapterError as error:
            return Reading(events, error, None)

    return run_virtual(read)


def read_pieces(wire: Wire, chunks: Iterable[Step], **changes: object) -> Reading:
    """Read a streamed body that arrives in these pieces."""
    return read_reply(wire, wire.stream_of(*chunks), streamed=True, **changes)


def read(wire: Wire, *events: Event, **changes: object) -> Reading:
    """Read a stream as a whole, in random pieces, and in the formats of other servers. All must give the same
    result.

    A deep run reads it byte by byte, too. In a quick run the conformance kit does so with a reply of each wire.
    """
    body = wire.stream(*events)
    whole = read_pieces(wire, [body], **dict(changes))
    random_cuts = random.Random(len(body)).sample(range(len(body)), k=min(len(body), 12))
    ways: list[Sequence[bytes]] = [pieces(body, random_cuts)]
    if not is_quick():
        ways.append(pieces(body, range(len(body))))
    for chunks in [*ways, *([other] for other in wire.other_forms(*events))]:
        found = read_pieces(wire, chunks, **dict(changes))
        assert plain(found.events) == plain(whole.events)
        assert str(found.error) == str(whole.error)
    return whole


def read_whole(wire: Wire, body: Json | bytes, **changes: object) -> Reading:
    """Read a plain reply. As an answer to a streaming request it must give the same result."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {"content-type": "application/json"}
    whole, streamed = (
        read_reply(wire, FakeReply(data, headers=headers), streamed=streamed, **dict(changes))
        for streamed in (False, True)
    )
    assert type(streamed.error) is type(whole.error)
    if whole.error is None:
        assert streamed.said == whole.said
        assert streamed.reply.stop_reason is whole.reply.stop_reason
    return whole


def shown(wire: Wire, *events: Event, **changes: object) -> list[StreamEvent]:
    """The events that are delivered while a stream hangs after these provider events."""
    return read_pieces(wire, [wire.stream(*events), HANG], seconds=5, **changes).events


def plain(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Events without the raw JSON of the usage, which differs between readings."""
    return [
        msgspec.structs.replace(event, usage=msgspec.structs.replace(event.usage, raw=None))
        if isinstance(event, MessageComplete)
        else event
        for event in events
    ]

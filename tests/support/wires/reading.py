"""Reading what a provider says, through its adapter: whole, and in any pieces, which must say the same."""

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
    """What became of a reply."""

    events: list[StreamEvent]
    """The events of a stream; none of a whole reply."""

    error: AdapterError | None
    """What the call ended in."""

    response: CanonicalResponse | None
    """What the caller has at the end."""

    def __init__(
        self, events: list[StreamEvent], error: AdapterError | None, response: CanonicalResponse | None
    ) -> None:
        self.events = events
        self.error = error
        self.response = response

    @property
    def last(self) -> MessageComplete:
        """The end of a stream, in order whatever it ended in."""
        return check_stream(self.events)

    @property
    def reply(self) -> CanonicalResponse:
        """The response of a call that must have ended well."""
        assert self.error is None, self.error
        assert self.response is not None
        return self.response

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        return self.reply.content if self.error is None else self.error.content

    @property
    def said(self) -> list[object]:
        """The blocks in short, see `in_short`."""
        return [in_short(block) for block in self.content]

    @property
    def kept(self) -> list[JsonObject | None]:
        """What each block keeps for its provider."""
        return [raw and raw.data for raw in (getattr(block, "provider_raw", None) for block in self.content)]

    @property
    def deltas(self) -> list[str]:
        """The texts of the stream's deltas, whatever they are of."""
        return [event.text for event in self.events if hasattr(event, "text")]

    @property
    def fragments(self) -> list[str]:
        """The pieces of calls' arguments."""
        return [event.partial_json for event in self.events if isinstance(event, ToolUseInputDelta)]

    @property
    def usage(self) -> TokenUsage:
        return self.reply.usage

    @property
    def warnings(self) -> list[str]:
        """The codes of the reply's warnings, without that of an estimate."""
        return [warning.code for warning in self.reply.warnings if warning.code != "usage_estimated"]


def in_short(block: ContentBlock) -> object:
    """A block without ids of ours.

    Text is a str. Reasoning is ``("thinking", text)``, with its signature if it has one. A call is
    ``(name, input, the provider's id)``; one that is incomplete is ``(name, the text of its arguments)``, or its
    input in place of that text. What is opaque is ``{kind: data}``, and an image is ``("image", its bytes or
    address, what came with it)``.
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
        "request_id": "req_1",
        "message_id": "msg_1",
        "messages": (),
        "model": f"{wire.name}:{wire.model}",
        "max_output_tokens": 64,
        "max_retries": 0,
        **changes,
    }
    if not fields["messages"]:
        fields["messages"] = (wire.hello,)
    return CanonicalRequest(**fields)  # type: ignore[arg-type]  # a test names its own fields


def read_reply(wire: Wire, reply: FakeReply, *, streamed: bool, seconds: float = 60, **changes: object) -> Reading:
    """Ask for a reply that comes as it is."""
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
    """Read a stream whole, at random cuts and as other servers write it; all must say the same.

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
    """Read a reply that is not streamed; in answer to a request for a stream it must say the same."""
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
    """The events that are delivered while a stream hangs after these of its own."""
    return read_pieces(wire, [wire.stream(*events), HANG], seconds=5, **changes).events


def plain(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Events without the usage's raw JSON, which is no value to compare."""
    return [
        msgspec.structs.replace(event, usage=msgspec.structs.replace(event.usage, raw=None))
        if isinstance(event, MessageComplete)
        else event
        for event in events
    ]

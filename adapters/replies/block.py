"""One block of a reply: fragments, events and content; and the raw reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from callboard.bus.streams.events import (
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import RawReply

from ..transport.transport import masked
from .decoders import BodyDecoder, SseEvent, is_whole, may_become_json, parse_arguments

# --- Growing arguments ---

Meaning: TypeAlias = Literal["either", "pieces", "so_far"]
"""What a server's fragments contain: the next piece, all arguments so far, or still undecided."""


class GrowingArguments:
    """The arguments of one call. `add` returns a fragment's new text. `settle` returns text that was held back."""

    __slots__ = ("_doubtful", "_meaning", "_size", "parts")

    def __init__(self, meaning: Meaning = "either") -> None:
        self.parts: list[str] = []
        """The text that is certain, in pieces."""
        self._meaning: Meaning = meaning
        self._size = 0
        self._doubtful = ""  # the fragment that is either a piece, or all arguments so far

    def copy(self) -> GrowingArguments:
        twin = GrowingArguments(self._meaning)
        twin.parts, twin._size, twin._doubtful = list(self.parts), self._size, self._doubtful
        return twin

    @property
    def text(self) -> str:
        """The text of the arguments, as if no more fragments followed."""
        return "".join(self.parts) + self._best_guess()

    @property
    def resent(self) -> bool:
        """Whether each chunk of the server has all arguments so far."""
        return self._meaning == "so_far"

    def add(self, fragment: str) -> str:
        size = len(fragment)
        if 0 < size < self._size and not self._doubtful and self._meaning != "so_far":  # the usual piece
            self.parts.append(fragment)
            self._size += size
            return fragment
        if self._doubtful:
            return self._decide(fragment)
        if size < self._size or not self._size or self._meaning == "pieces":
            if self._meaning == "so_far" and fragment and "".join(self.parts).startswith(fragment):
                return ""  # the server repeated an earlier state
            return self._keep(fragment)
        return self._compare(fragment)

    def settle(self) -> str:
        """Return the held text. Call this when no more fragments follow."""
        rest = self._best_guess()
        self._doubtful = ""
        return self._keep(rest)

    def _keep(self, text: str) -> str:
        if text:
            self.parts.append(text)
            self._size += len(text)
        return text

    def _compare(self, fragment: str) -> str:
        before = "".join(self.parts)
        if not before.strip() or not fragment.startswith(before):
            return self._keep(fragment)
        if self._meaning == "so_far":
            return self._keep(fragment[self._size :])
        if is_whole(before):
            # some gateways send the whole arguments again at the end
            repeated = fragment.strip() == before.strip()
            return "" if repeated else self._keep(fragment)
        as_piece, as_whole = may_become_json(before + fragment), may_become_json(fragment)
        if as_piece and as_whole:
            self._doubtful = fragment
            return ""
        if as_piece:
            self._meaning = "pieces"
            return self._keep(fragment)
        self._meaning = "so_far"
        return self._keep(fragment[self._size :])

    def _decide(self, fragment: str) -> str:
        if not fragment:
            return ""
        doubtful, self._doubtful = self._doubtful, ""
        self._meaning = "so_far" if fragment.startswith(doubtful) and may_become_json(fragment) else "pieces"
        first = doubtful[self._size :] if self._meaning == "so_far" else doubtful
        return self._keep(first) + self.add(fragment)

    def _best_guess(self) -> str:
        """The new text of an undecided fragment, if no other fragment follows."""
        if not self._doubtful:
            return ""
        pieces = parse_arguments("".join(self.parts) + self._doubtful).value is not None
        if pieces and parse_arguments(self._doubtful).value is None:
            return self._doubtful
        return self._doubtful[self._size :]


CleanInput: TypeAlias = Callable[[str, JsonObject], JsonObject]
"""Converts the arguments that a model sent for a tool."""


class ReplyBlock(msgspec.Struct):
    message_id: str
    kind: Literal["text", "thinking", "tool", "whole"]
    implicit_end: bool
    """Whether the block may end without an end from the provider."""
    index: int = -1  # assigned when the block opens
    """The place of the block in the message; -1 until it is open."""
    parts: list[str] = msgspec.field(default_factory=list)
    """The fragments in their order, emitted and held."""
    signature: str | None = None
    raw: JsonObject | None = None  # becomes provider_raw
    tool_id: str = ""
    tool_name: str = ""
    arguments: GrowingArguments | None = None
    """The arguments of a tool call. `parts` contains the pieces that are certain."""
    unwrapped: bool = False
    """Whether the arguments were a JSON string that contains the object."""
    final_input: JsonObject | None = None
    """The arguments of a tool call, if sent as an object."""
    whole: ContentBlock | None = None  # for kind "whole"
    whole_raw: Json = None
    ended: bool = False  # reported by the provider, possibly before the block opens
    incomplete: bool = False  # reported by the provider: the call must not be executed
    closed: bool = False
    content: ContentBlock | None = None  # set when closed
    """The content of the block after its close. None before, and for a block without content."""

    def __post_init__(self) -> None:
        if self.arguments is not None:
            self.parts = self.arguments.parts

    def copy(self) -> ReplyBlock:
        arguments = None if self.arguments is None else self.arguments.copy()
        return msgspec.structs.replace(self, parts=list(self.parts), arguments=arguments)

    @property
    def text(self) -> str:
        """All fragments joined. For a call, the arguments received so far."""
        return "".join(self.parts) if self.arguments is None else self.arguments.text

    def written(self) -> list[str]:
        """The fragments that the model wrote. Arguments that were sent as an object are converted to JSON."""
        if self.parts or not self.final_input:
            return self.parts
        return [msgspec.json.encode(self.final_input).decode()]

    def may_be_complete(self) -> bool:
        """Whether a later block may end this block."""
        if not self.implicit_end:
            return False
        return self.kind != "tool" or parse_arguments(self.text).value is not None

    def open(self, index: int) -> list[StreamEvent]:
        self.index = index
        match self.kind:
            case "tool":
                started: StreamEvent = ToolUseStart(self.tool_id, self.tool_name, index, self.message_id)
                return [started, *map(self.delta, self.parts)]
            case "whole":
                return [ProviderBlock(self.tool_name, self.whole_raw, index, self.message_id)]
            case _:
                return [*map(self.delta, self.parts)]

    def delta(self, fragment: str) -> StreamEvent:
        match self.kind:
            case "text":
                return TextDelta(fragment, self.index, self.message_id)
            case "tool":
                return ToolUseInputDelta(self.tool_id, fragment, self.index, self.message_id)
            case _:
                return ThinkingDelta(fragment, None, self.index, self.message_id)

    def close(
        self, raw: Callable[[JsonObject], ProviderRaw], clean_input: CleanInput | None, *, cut_off: bool
    ) -> list[StreamEvent]:
        """Close the block, and make its `content`."""
        self.closed = True
        match self.kind:
            case "text":
                self.content = TextBlock("".join(self.parts), None if self.raw is None else raw(self.raw))
            case "thinking":
                self.content = ThinkingBlock("".join(self.parts), self.signature, raw(self.raw or {}))
                if self.signature is not None:
                    return [ThinkingDelta("", self.signature, self.index, self.message_id)]
            case "tool":
                rest = "" if self.arguments is None else self.arguments.settle()
                self.content = call = self._call(raw(self.raw or {}), clean_input, cut_off)
                waited = [self.delta(rest)] if rest else []
                return [*waited, ToolUseEnd(call.id, call.input, call.incomplete, self.index, self.message_id)]
            case "whole":
                self.content = self.whole
        return []

    def _call(self, raw: ProviderRaw, clean_input: CleanInput | None, cut_off: bool) -> ToolUseBlock:
        text = "".join(self.parts)
        parsed = self.final_input
        if parsed is None:
            parsed, self.unwrapped = parse_arguments(text)
        cut_off = cut_off or self.incomplete
        if parsed is None and not text.strip() and not cut_off:
            parsed = {}  # a call without arguments
        final: JsonObject = parsed or {}
        if parsed and clean_input is not None:
            final = clean_input(self.tool_name, parsed)
        return ToolUseBlock(
            id=self.tool_id,
            name=self.tool_name,
            input=final,
            raw_arguments=text if parsed is None and text else None,
            incomplete=cut_off or parsed is None,
            provider_raw=raw,
        )


# --- The raw reply ---

MAX_RAW_BYTES = 16 * 1024 * 1024
"""The largest number of bytes that are kept of one reply."""


class RawKept:
    """Collects the raw data of one reply, from all its connections."""

    def __init__(self) -> None:
        self._body: bytes | None = None
        self._events: list[bytes] = []
        self._size = 0
        self._left_out = 0

    def body(self, body: bytes) -> None:
        if self._has_room(body):
            self._body = body

    def event(self, data: bytes) -> None:
        if self._has_room(data):
            self._events.append(data)

    def again(self, data: bytes) -> None:
        """Drop a recent event, because another connection repeats it."""
        for index in reversed(range(len(self._events))):
            if self._events[index] is data:
                del self._events[index]
                self._size -= len(data)
                return

    def recording(self, decoder: BodyDecoder) -> BodyDecoder:
        return _RecordingDecoder(decoder, self)

    def reply(self, hidden: Sequence[str]) -> RawReply:
        return RawReply(
            body=None if self._body is None else _decoded(self._body, hidden),
            events=tuple(_decoded(data, hidden) for data in self._events),
            left_out=self._left_out,
        )

    def _has_room(self, data: bytes) -> bool:
        # once an event was left out, later ones are too, so the recorded part has no gaps
        if self._left_out or self._size + len(data) > MAX_RAW_BYTES:
            self._left_out += 1
            return False
        self._size += len(data)
        return True


class _RecordingDecoder:
    def __init__(self, decoder: BodyDecoder, raw_events: RawKept) -> None:
        self._decoder = decoder
        self._raw_events = raw_events

    def feed(self, chunk: bytes) -> list[SseEvent]:
        return self._noted(self._decoder.feed(chunk))

    def close(self) -> list[SseEvent]:
        return self._noted(self._decoder.close())

    def _noted(self, events: list[SseEvent]) -> list[SseEvent]:
        for _, data in events:
            if data != b"[DONE]":  # `[DONE]` is not recorded, because even a complete reply may lack it
                self._raw_events.event(data)
        return events


def _decoded(data: bytes, hidden: Sequence[str]) -> Json:
    text = masked(data.decode("utf-8", "replace"), hidden)
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value

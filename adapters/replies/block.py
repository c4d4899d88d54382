"""One block of a reply: what has come of it, the events that tell of it, and what it comes to in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import msgspec

from bus.streams.events import (
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from bus.values.content import ContentBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json, JsonObject

from .json_text import parse_object

CleanInput: TypeAlias = Callable[[str, JsonObject], JsonObject]
"""Given a tool's name and the arguments that the model sent, what they are to mean."""


@dataclass(slots=True)
class ReplyBlock:
    """Of the message with that id. `parts` are what came, in order, whether told already or still held back."""

    message_id: str
    kind: Literal["text", "thinking", "tool", "whole"]
    implicit_end: bool
    index: int = -1  # assigned when the block opens
    parts: list[str] = field(default_factory=list)
    signature: str | None = None
    raw: JsonObject | None = None  # becomes provider_raw
    tool_id: str = ""
    tool_name: str = ""
    final_input: JsonObject | None = None
    whole: ContentBlock | None = None  # for kind "whole"
    whole_raw: Json = None
    ended: bool = False  # the provider said so; a held block can be ended before it opens
    incomplete: bool = False  # the provider said that this call must not be executed
    closed: bool = False
    content: ContentBlock | None = None  # what it came to, once closed

    def copy(self) -> ReplyBlock:
        return replace(self, parts=list(self.parts))

    def written(self) -> list[str]:
        """What the model wrote, in fragments; of a call whose arguments came as an object, that as JSON."""
        if self.parts or not self.final_input:
            return self.parts
        return [msgspec.json.encode(self.final_input).decode()]

    def may_be_complete(self) -> bool:
        """Whether the protocol lets a later block end this one."""
        if not self.implicit_end:
            return False
        return self.kind != "tool" or parse_object("".join(self.parts)) is not None

    def open(self, index: int) -> list[StreamEvent]:
        """It is this block's turn: the events of what has come of it."""
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
        """The event of one more fragment."""
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
        """Nothing more comes: what it came to is its `content` from now on. The events of its end.

        raw: marks the provider's data as the provider's. cut_off: the reply broke off in it.
        """
        self.closed = True
        match self.kind:
            case "text":
                self.content = TextBlock("".join(self.parts), None if self.raw is None else raw(self.raw))
            case "thinking":
                self.content = ThinkingBlock("".join(self.parts), self.signature, raw(self.raw or {}))
                if self.signature is not None:
                    return [ThinkingDelta("", self.signature, self.index, self.message_id)]
            case "tool":
                self.content = call = self._call(raw(self.raw or {}), clean_input, cut_off)
                return [ToolUseEnd(call.id, call.input, call.incomplete, self.index, self.message_id)]
            case "whole":
                self.content = self.whole
        return []

    def _call(self, raw: ProviderRaw, clean_input: CleanInput | None, cut_off: bool) -> ToolUseBlock:
        text = "".join(self.parts)
        parsed = self.final_input if self.final_input is not None else parse_object(text)
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

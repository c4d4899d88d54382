"""One block of a reply: the fragments that came for it, its events, and its content in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from callboard.bus.values.content import ContentBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.json import Json, JsonObject

from .growing import GrowingArguments
from .json_text import parse_arguments

CleanInput: TypeAlias = Callable[[str, JsonObject], JsonObject]
"""Given a tool's name and the arguments that the model sent, what they are to mean."""


@dataclass(slots=True)
class ReplyBlock:
    """A block of one message."""

    message_id: str
    """The id of the message."""
    kind: Literal["text", "thinking", "tool", "whole"]
    """The kind of the block. A ``whole`` block comes in one piece and has no fragments."""
    implicit_end: bool
    """Whether the block may end without a word of the provider."""
    index: int = -1  # assigned when the block opens
    """The place of the block in the message; -1 until it is open."""
    parts: list[str] = field(default_factory=list)
    """The fragments in their order, both emitted and held back."""
    signature: str | None = None
    """The signature of a reasoning block."""
    raw: JsonObject | None = None  # becomes provider_raw
    """The provider's data of the block."""
    tool_id: str = ""
    """The id of a tool call."""
    tool_name: str = ""
    """The name of the tool."""
    arguments: GrowingArguments | None = None
    """The arguments of a tool call, whose certain pieces are `parts`."""
    unwrapped: bool = False
    """Whether the arguments came as a JSON string that held the object."""
    final_input: JsonObject | None = None
    """The arguments of a tool call, if they came as an object."""
    whole: ContentBlock | None = None  # for kind "whole"
    """The content of a whole block."""
    whole_raw: Json = None
    """The provider's own form of a whole block."""
    ended: bool = False  # the provider said so; a held block can be ended before it opens
    """Whether the provider has said that the block ended."""
    incomplete: bool = False  # the provider said that this call must not be executed
    """Whether a tool call ended before its arguments were complete."""
    closed: bool = False
    """Whether the events of the end were emitted."""
    content: ContentBlock | None = None  # what it came to, once closed
    """The content of a closed block; None before, and for a block without content."""

    def __post_init__(self) -> None:
        if self.arguments is not None:
            self.parts = self.arguments.parts

    def copy(self) -> ReplyBlock:
        arguments = None if self.arguments is None else self.arguments.copy()
        return replace(self, parts=list(self.parts), arguments=arguments)

    @property
    def text(self) -> str:
        """All fragments in one, with what a call's arguments would have if they ended here."""
        return "".join(self.parts) if self.arguments is None else self.arguments.text

    def written(self) -> list[str]:
        """The model's words, in fragments. Arguments that came as an object are given as JSON."""
        if self.parts or not self.final_input:
            return self.parts
        return [msgspec.json.encode(self.final_input).decode()]

    def may_be_complete(self) -> bool:
        """Whether the protocol lets a later block end this one."""
        if not self.implicit_end:
            return False
        return self.kind != "tool" or parse_arguments(self.text).value is not None

    def open(self, index: int) -> list[StreamEvent]:
        """Open the block at its place in the message.

        Returns:
            The events of everything that has come for the block so far.
        """
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
        """Close the block, and make its `content`.

        Args:
            raw: Marks the provider's data as the provider's.
            clean_input: Makes the arguments for the tool out of the model's arguments.
            cut_off: Whether the reply broke off in this block.

        Returns:
            The events of the block's end.
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

"""The events of a streamed reply, as every adapter emits them.

What holds for the events of one message, whatever the provider sent (the stream invariants):

* `MessageStart` comes before anything else, `MessageComplete` is the last, and there is exactly one of each.
* The events of a block are contiguous, and `content_block_index` never decreases.
* A tool call is one `ToolUseStart`, any number of `ToolUseInputDelta`, exactly one `ToolUseEnd`.
* `partial_json` is the provider's fragment, byte for byte; `final_input` is always a JSON object.
* `MessageComplete.final_content` is what the deltas add up to.

A call that fails after its first event still ends in `MessageComplete`, with stop reason ``error``, before the
exception is raised; a cancelled one ends in ``cancelled``.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from ..events.catalogue import ToolFinished, ToolProgress, ToolStarted, TurnStatus
from ..values.content import ContentBlock
from ..values.json import Json, JsonObject
from ..values.messages import CallWarning as CallWarning
from ..values.usage import Cost, StopReason, TokenUsage


class MessageStart(msgspec.Struct, frozen=True, gc=False, tag="message.start"):
    """The reply begins. message_id: of the message that all its events are of; ours. model: as the provider names
    the one that serves the call.

    warnings: what was known when the call was sent, such as what of the history this model can't be told; those of
    the response are all.
    """

    message_id: str = ""
    model: str = ""
    provider: str = ""
    warnings: tuple[CallWarning, ...] = ()
    type: ClassVar[str] = "message.start"


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text.delta"):
    """More text. content_block_index: its block's place in the reply, from 0. message_id: of the reply."""

    text: str
    content_block_index: int = 0
    message_id: str = ""
    type: ClassVar[str] = "text.delta"

    @property
    def segment_id(self) -> str:
        """Of the block that it belongs to: the same for all its deltas."""
        return f"{self.message_id}:{self.content_block_index}"


class ThinkingDelta(msgspec.Struct, frozen=True, gc=False, tag="thinking.delta"):
    """More reasoning; `signature` stands on the block's last delta, if the provider signs.

    content_block_index, message_id: as in `TextDelta`.
    """

    text: str
    signature: str | None = None
    content_block_index: int = 0
    message_id: str = ""
    type: ClassVar[str] = "thinking.delta"

    @property
    def segment_id(self) -> str:
        """Of the block that it belongs to: the same for all its deltas."""
        return f"{self.message_id}:{self.content_block_index}"


class ToolUseStart(msgspec.Struct, frozen=True, gc=False, tag="tool.use_start"):
    """A tool call begins. tool_use_id: our id, the same as in the final ToolUseBlock.

    content_block_index, message_id: as in `TextDelta`.
    """

    tool_use_id: str
    tool_name: str
    content_block_index: int = 0
    message_id: str = ""
    type: ClassVar[str] = "tool.use_start"


class ToolUseInputDelta(msgspec.Struct, frozen=True, gc=False, tag="tool.use_input_delta"):
    """More of a call's arguments. partial_json: a literal fragment of JSON text.

    content_block_index, message_id: as in `TextDelta`.
    """

    tool_use_id: str
    partial_json: str
    content_block_index: int = 0
    message_id: str = ""
    type: ClassVar[str] = "tool.use_input_delta"


class ToolUseEnd(msgspec.Struct, frozen=True, gc=False, tag="tool.use_end"):
    """A tool call is whole, or will get no further: then `incomplete` is set and it must not be executed.

    A whole call may be run only if the reply ends well, and that is not known yet: `MessageComplete` has the call
    as incomplete if it doesn't.

    final_input: all its arguments, as far as they are an object. content_block_index, message_id: as in
    `TextDelta`.
    """

    tool_use_id: str
    final_input: JsonObject
    incomplete: bool = False
    content_block_index: int = 0
    message_id: str = ""
    type: ClassVar[str] = "tool.use_end"


class ProviderBlock(msgspec.Struct, frozen=True, gc=False, tag="provider.block"):
    """A whole block outside this catalogue (redacted thinking included).

    kind: the provider's name for it. raw: as the provider sent it. content_block_index, message_id: as in
    `TextDelta`.
    """

    kind: str
    raw: Json
    content_block_index: int = 0
    message_id: str = ""
    type: ClassVar[str] = "provider.block"


class MessageComplete(msgspec.Struct, frozen=True, gc=False, tag="message.complete"):
    """The reply is over: all its content, why it ended, and what it used. raw_stop_reason: the provider's own
    word; None if it gave none, as when we ended it.
    """

    final_content: tuple[ContentBlock, ...]
    stop_reason: StopReason
    raw_stop_reason: str | None
    usage: TokenUsage
    message_id: str = ""
    type: ClassVar[str] = "message.complete"


class StepFinish(msgspec.Struct, frozen=True, gc=False, tag="step.finish"):
    """One call of a turn, and the tools it asked for, are done. step: from 0. usage, cost: of that call;
    message_id: of its message.
    """

    step: int
    stop_reason: StopReason
    usage: TokenUsage
    cost: Cost | None = None
    message_id: str = ""
    type: ClassVar[str] = "step.finish"


class TurnComplete(msgspec.Struct, frozen=True, gc=False, tag="turn.complete"):
    """The last event of a turn's stream. status: as `TurnStatus` lists them.

    error: type and text of what a failed or cancelled turn raised.
    """

    status: TurnStatus
    error: str | None = None
    type: ClassVar[str] = "turn.complete"


StreamEvent: TypeAlias = (
    MessageStart
    | TextDelta
    | ThinkingDelta
    | ToolUseStart
    | ToolUseInputDelta
    | ToolUseEnd
    | ProviderBlock
    | MessageComplete
)
"""What a reply consists of, as it comes."""

TurnEvent: TypeAlias = StreamEvent | ToolStarted | ToolProgress | ToolFinished | StepFinish | TurnComplete
"""What a turn's stream log holds: each message's events, tools and steps between them, one TurnComplete last."""

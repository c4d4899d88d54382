"""Events of a streamed reply, as every adapter emits them.

* `MessageStart` is first, `MessageComplete` is last, and there is exactly one of each.
* The events of a block are contiguous, and `content_block_index` never decreases.
* A tool call is one `ToolUseStart`, any number of `ToolUseInputDelta`, exactly one `ToolUseEnd`.
* `partial_json` is the provider's fragment, byte for byte; `final_input` is always a JSON object.
* `MessageComplete.final_content` is the sum of the deltas.

A call that fails or is cancelled after its first event still emits `MessageComplete`, then raises its exception.
The stop reason is then ``error`` or ``cancelled``.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from ..events.calls import ToolFinished, ToolProgress, ToolStarted
from ..events.sessions import TurnStatus
from ..values.base import Json, JsonObject
from ..values.content import ContentBlock
from ..values.messages import CallWarning
from ..values.usage import Cost, StopReason, TokenUsage


class MessageStart(msgspec.Struct, frozen=True, gc=False, tag="message.start"):
    """The start of the reply."""

    message_id: str = ""
    """Our id of the message that all events of the reply belong to."""
    model: str = ""
    """The model that serves the call, as the provider names it."""
    provider: str = ""
    """The adapter's name."""
    warnings: tuple[CallWarning, ...] = ()
    """The warnings known when the call was sent, such as history that this model cannot accept.

    The response has all warnings.
    """
    type: ClassVar[str] = "message.start"


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text.delta"):
    """More text."""

    text: str
    """The new text."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "text.delta"

    @property
    def segment_id(self) -> str:
        """The id of its block, the same for all deltas of the block."""
        return f"{self.message_id}:{self.content_block_index}"


class ThinkingDelta(msgspec.Struct, frozen=True, gc=False, tag="thinking.delta"):
    """More reasoning."""

    text: str
    """The new reasoning."""
    signature: str | None = None
    """The provider's signature, on the block's last delta, if the provider signs."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "thinking.delta"

    @property
    def segment_id(self) -> str:
        """The id of its block, the same for all deltas of the block."""
        return f"{self.message_id}:{self.content_block_index}"


class ToolUseStart(msgspec.Struct, frozen=True, gc=False, tag="tool.use_start"):
    """The start of a tool call."""

    tool_use_id: str
    """Our id of the call, the same as in the final ToolUseBlock."""
    tool_name: str
    """The tool's name."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "tool.use_start"


class ToolUseInputDelta(msgspec.Struct, frozen=True, gc=False, tag="tool.use_input_delta"):
    """More of a call's arguments."""

    tool_use_id: str
    """Our id of the call."""
    partial_json: str
    """A literal fragment of JSON text."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "tool.use_input_delta"


class ToolUseEnd(msgspec.Struct, frozen=True, gc=False, tag="tool.use_end"):
    """The end of a tool call's arguments, complete or cut off.

    Run the call only if the reply ends well. If it doesn't, `MessageComplete` marks the call as incomplete.
    """

    tool_use_id: str
    """Our id of the call."""
    final_input: JsonObject
    """All arguments of the call, as far as they are an object."""
    incomplete: bool = False
    """Whether the call was cut off. Never run it then."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "tool.use_end"


class ProviderBlock(msgspec.Struct, frozen=True, gc=False, tag="provider.block"):
    """A whole block outside this catalogue, redacted thinking included."""

    kind: str
    """The provider's name for the block."""
    raw: Json
    """The block as the provider sent it."""
    content_block_index: int = 0
    """The place of the block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "provider.block"


class ProviderEvent(msgspec.Struct, frozen=True, gc=False, tag="provider.event"):
    """Data outside the content: the progress of the provider's tools, a partial image, an event of an unknown
    kind.

    It belongs to no block and may occur anywhere in a message. Only live readers get it: folding a stream drops
    it.
    """

    kind: str
    """The provider's name for the event."""
    raw: Json
    """The event as the provider sent it."""
    message_id: str = ""
    """The id of the reply's message."""
    content_block_index: int | None = None
    """The index of the block that it represents in the view of `stream()`, from 0; None if it represents none.

    Adapters report whole blocks as `ProviderBlock`.
    """
    type: ClassVar[str] = "provider.event"


class MessageComplete(msgspec.Struct, frozen=True, gc=False, tag="message.complete"):
    """The end of the reply."""

    final_content: tuple[ContentBlock, ...]
    """All content of the reply."""
    stop_reason: StopReason
    """How the reply ended."""
    raw_stop_reason: str | None
    """The provider's own stop reason; None if it gave none, for example after our own stop."""
    usage: TokenUsage
    """The tokens that the reply used."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "message.complete"


class StepFinish(msgspec.Struct, frozen=True, gc=False, tag="step.finish"):
    """The end of one call of a turn and of the tools that it requested."""

    step: int
    """The number of the step in the turn, from 0."""
    stop_reason: StopReason
    """How the reply ended."""
    usage: TokenUsage
    """The tokens of the call."""
    cost: Cost | None = None
    """The cost of the call."""
    message_id: str = ""
    """The id of the call's message."""
    type: ClassVar[str] = "step.finish"


class TurnComplete(msgspec.Struct, frozen=True, gc=False, tag="turn.complete"):
    """The last event of a turn's stream."""

    status: TurnStatus
    """How the turn ended, as `TurnStatus` lists the values."""
    error: str | None = None
    """The type and text of the exception that a failed or cancelled turn raised."""
    type: ClassVar[str] = "turn.complete"


class UserMessage(msgspec.Struct, frozen=True, gc=False, tag="user.message"):
    """A user message that steers a turn in progress. The next reply of the model takes it into account."""

    content: tuple[ContentBlock, ...]
    """The content of the message."""
    message_id: str = ""
    """Our id of the message."""
    type: ClassVar[str] = "user.message"


StreamEvent: TypeAlias = (
    MessageStart
    | TextDelta
    | ThinkingDelta
    | ToolUseStart
    | ToolUseInputDelta
    | ToolUseEnd
    | ProviderBlock
    | ProviderEvent
    | MessageComplete
)
"""An event of a reply."""

TurnEvent: TypeAlias = (
    StreamEvent | UserMessage | ToolStarted | ToolProgress | ToolFinished | StepFinish | TurnComplete
)
"""An event of a turn: the events of each message, tools, steps and steering, and one TurnComplete last."""

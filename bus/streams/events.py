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

from ..events.calls import ToolFinished, ToolProgress, ToolStarted
from ..events.sessions import TurnStatus
from ..values.base import Json, JsonObject
from ..values.content import ContentBlock
from ..values.messages import CallWarning
from ..values.usage import Cost, StopReason, TokenUsage


class MessageStart(msgspec.Struct, frozen=True, gc=False, tag="message.start"):
    """The reply begins."""

    message_id: str = ""
    """Our id of the message that all events of the reply belong to."""
    model: str = ""
    """The model that serves the call, as the provider names it."""
    provider: str = ""
    """The adapter's name."""
    warnings: tuple[CallWarning, ...] = ()
    """The warnings that were known when the call was sent, such as parts of the history that this model can't be
    told. The response has all warnings."""
    type: ClassVar[str] = "message.start"


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text.delta"):
    """More text."""

    text: str
    """The text that is new."""
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
    """The reasoning that is new."""
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
    """A tool call begins."""

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
    """A tool call is whole, or will get no further.

    A whole call may be run only if the reply ends well, and that is not known yet. If the reply ends badly,
    `MessageComplete` has the call as incomplete.
    """

    tool_use_id: str
    """Our id of the call."""
    final_input: JsonObject
    """All arguments of the call, as far as they are an object."""
    incomplete: bool = False
    """Whether the call will get no further; then it must not be run."""
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
    """What a provider tells beside the content: the progress of its own tools, a picture as far as it is painted,
    an event of a kind that isn't known here.

    It belongs to no block, and may stand anywhere in a message. It is for readers who are there when it comes:
    what is told of a message later, when its stretch of the stream was folded, has none.
    """

    kind: str
    """The provider's name for the event."""
    raw: Json
    """The event as the provider sent it."""
    message_id: str = ""
    """The id of the reply's message."""
    content_block_index: int | None = None
    """The place of the block that it stands for in the reply, from 0; None if it stands for none. Adapters tell
    whole blocks as `ProviderBlock`; in the view of `stream()` these are events as well."""
    type: ClassVar[str] = "provider.event"


class MessageComplete(msgspec.Struct, frozen=True, gc=False, tag="message.complete"):
    """The reply is over."""

    final_content: tuple[ContentBlock, ...]
    """All content of the reply."""
    stop_reason: StopReason
    """The reason why the reply ended."""
    raw_stop_reason: str | None
    """The provider's own word for the stop reason; None if it gave none, as when we ended the reply."""
    usage: TokenUsage
    """The tokens that the reply used."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "message.complete"


class StepFinish(msgspec.Struct, frozen=True, gc=False, tag="step.finish"):
    """One call of a turn is done, and so are the tools that it asked for."""

    step: int
    """The number of the step in the turn, from 0."""
    stop_reason: StopReason
    """The reason why the reply ended."""
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
    """The way the turn ended, as `TurnStatus` lists them."""
    error: str | None = None
    """The type and the text of the exception that a failed or cancelled turn raised."""
    type: ClassVar[str] = "turn.complete"


class UserMessage(msgspec.Struct, frozen=True, gc=False, tag="user.message"):
    """The user said more while the turn was under way. The next reply of the model knows it."""

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
"""What a reply consists of, as it comes."""

TurnEvent: TypeAlias = (
    StreamEvent | UserMessage | ToolStarted | ToolProgress | ToolFinished | StepFinish | TurnComplete
)
"""What a turn's stream log holds: each message's events, between them tools, steps and what steers the turn, one
TurnComplete last."""

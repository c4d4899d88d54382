"""The view of a stream that `stream()` gives: what happens, with a beginning and an end for everything.

    message.start                                     with what is known to be amiss
      thinking.start  thinking.delta …  thinking.end
      text.start      text.delta …      text.end      each end carries the whole of it
      tool.use_start  tool.use_input_delta …  tool.use_end
      provider.event                                  a block that we know nothing about
    message.complete
    tool.started …  tool.finished                     of the tools that are run here, if it called any
    step.finish                                       then the next message.start, or the end:
    finish                                            or `error`, which is then raised

The deltas and whatever else stands in a turn's stream are passed on as they are. Every event has a `type`, and the
events of a segment have the same `segment_id` (those of a tool call, the same `tool_use_id`).
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from adapters import CanonicalResponse
from bus import Cost, ToolFinished, ToolProgress, ToolStarted
from bus.streams.events import (
    MessageComplete,
    MessageStart,
    StepFinish,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from bus.values.json import Json
from bus.values.usage import StopReason, TokenUsage


class TextStart(msgspec.Struct, frozen=True, gc=False, tag="text.start"):
    """A piece of text begins.

    segment_id: the same for its start, its deltas and its end. message_id: of the message that it belongs to.
    content_block_index: its place in the reply's content, from 0.
    """

    segment_id: str
    message_id: str
    content_block_index: int
    type: ClassVar[str] = "text.start"


class TextEnd(msgspec.Struct, frozen=True, gc=False, tag="text.end"):
    """A piece of text is over. text: all of it. segment_id, message_id, content_block_index: as in `TextStart`."""

    segment_id: str
    text: str
    message_id: str
    content_block_index: int
    type: ClassVar[str] = "text.end"


class ThinkingStart(msgspec.Struct, frozen=True, gc=False, tag="thinking.start"):
    """The model begins to reason. segment_id, message_id, content_block_index: as in `TextStart`."""

    segment_id: str
    message_id: str
    content_block_index: int
    type: ClassVar[str] = "thinking.start"


class ThinkingEnd(msgspec.Struct, frozen=True, gc=False, tag="thinking.end"):
    """A piece of reasoning is over. text: all of it that can be seen. signature: of a provider that signs.

    segment_id, message_id, content_block_index: as in `TextStart`.
    """

    segment_id: str
    text: str
    signature: str | None
    message_id: str
    content_block_index: int
    type: ClassVar[str] = "thinking.end"


class ProviderEvent(msgspec.Struct, frozen=True, tag="provider.event"):
    """A whole block outside this catalogue. kind: the provider's name for it. raw: as the provider sent it.

    message_id, content_block_index: as in `TextStart`.
    """

    kind: str
    raw: Json
    message_id: str
    content_block_index: int
    type: ClassVar[str] = "provider.event"


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """The last event, when all went well. response, stop_reason: of the last message.

    usage: of all messages. cost: of all calls, failed ones included; unknown as soon as one of them is.
    status: see `GenerateResult`.
    """

    stop_reason: StopReason
    usage: TokenUsage
    cost: Cost
    response: CanonicalResponse
    status: str
    type: ClassVar[str] = "finish"


class StreamFailed(msgspec.Struct, frozen=True, tag="error"):
    """The last event, when it failed or was cancelled; the same error is then raised to whoever iterates."""

    error: Exception
    type: ClassVar[str] = "error"


ViewEvent: TypeAlias = (
    MessageStart
    | ThinkingStart
    | ThinkingDelta
    | ThinkingEnd
    | TextStart
    | TextDelta
    | TextEnd
    | ToolUseStart
    | ToolUseInputDelta
    | ToolUseEnd
    | ProviderEvent
    | MessageComplete
    | StepFinish
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | Finish
    | StreamFailed
)
"""What a `StreamResult` consists of: the events of its turn, with a start and an end for all that has a length."""

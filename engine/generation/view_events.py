"""The view of `stream()`: each part with a start and an end.

    message.start                                     with the warnings so far
      thinking.start  thinking.delta …  thinking.end
      text.start      text.delta …      text.end      each end has the whole text
      tool.use_start  tool.use_input_delta …  tool.use_end
      provider.event                                  an unknown block, or another provider event
    message.complete
    tool.started …  tool.finished                     of the tools that are run here, if it called any
    step.finish  user.message                         then the next message.start, or the end:
    finish                                            or `error`, which is then raised

All events of a turn's stream are passed on unchanged. Events of a segment have the same `segment_id`.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from callboard.adapters import CanonicalResponse
from callboard.bus import Cost, ToolFinished, ToolProgress, ToolStarted, TurnStatus
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderEvent,
    StepFinish,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UserMessage,
)
from callboard.bus.values.usage import StopReason, TokenUsage


class TextStart(msgspec.Struct, frozen=True, gc=False, tag="text.start"):
    """A block of text starts."""

    segment_id: str
    """The id of the segment, the same for its start, its deltas and its end."""
    message_id: str
    """The id of the segment's message."""
    content_block_index: int
    """The index of the segment's block in the reply's content, from 0."""
    type: ClassVar[str] = "text.start"


class TextEnd(msgspec.Struct, frozen=True, gc=False, tag="text.end"):
    """A block of text ends."""

    segment_id: str
    """The id of the segment, the same for its start, its deltas and its end."""
    text: str
    """All of the text."""
    message_id: str
    """The id of the segment's message."""
    content_block_index: int
    """The index of the segment's block in the reply's content, from 0."""
    type: ClassVar[str] = "text.end"


class ThinkingStart(msgspec.Struct, frozen=True, gc=False, tag="thinking.start"):
    """A block of reasoning starts."""

    segment_id: str
    """The id of the segment, the same for its start, its deltas and its end."""
    message_id: str
    """The id of the segment's message."""
    content_block_index: int
    """The index of the segment's block in the reply's content, from 0."""
    type: ClassVar[str] = "thinking.start"


class ThinkingEnd(msgspec.Struct, frozen=True, gc=False, tag="thinking.end"):
    """A block of reasoning ends."""

    segment_id: str
    """The id of the segment, the same for its start, its deltas and its end."""
    text: str
    """The whole visible reasoning."""
    signature: str | None
    """The signature of the reasoning, if the provider signs it."""
    message_id: str
    """The id of the segment's message."""
    content_block_index: int
    """The index of the segment's block in the reply's content, from 0."""
    type: ClassVar[str] = "thinking.end"


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """The last event of a turn that succeeded."""

    stop_reason: StopReason
    """The reason why the last message ended."""
    usage: TokenUsage
    """The tokens of all messages."""
    cost: Cost
    """The cost of all calls, including failed ones; unknown if one cost is unknown."""
    response: CanonicalResponse
    """The last message as the adapter returned it."""
    status: TurnStatus
    """How the turn ended: a value of `TurnStatus`."""
    type: ClassVar[str] = "finish"


class StreamFailed(msgspec.Struct, frozen=True, tag="error"):
    """The last event of a turn that failed or was cancelled. Readers then get the same error as an exception."""

    error: Exception
    """The exception of the turn."""
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
    | UserMessage
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | Finish
    | StreamFailed
)
"""An event of a `StreamResult`: an event of the turn, or the start or end of a segment."""

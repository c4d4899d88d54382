"""The events of the view of `stream()`, and the accumulator that makes a message of them.

Each part of the view has a start and an end:

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

from typing import ClassVar, TypeAlias, assert_never

import msgspec

from callboard.adapters import CanonicalResponse
from callboard.bus import CallboardError, Cost, StreamReset, ToolFinished, ToolProgress, ToolStarted, TurnStatus
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    ProviderEvent,
    StepFinish,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnEvent,
    UserMessage,
)
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import with_whole_calls
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource


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


# --- The accumulator ---


class StreamAccumulator:
    """Builds a response from the events of a stream. Call `process(event)` for each event. Then `response()`
    returns the same as `complete()`.

    It accepts the events of an adapter's stream, of a turn's log and of `stream()`. If there are several messages,
    it returns the last one.

    Args:
        request_id: The request id of the response, because no event has it.
    """

    def __init__(self, *, request_id: str = "") -> None:
        self.message_id = ""
        """The id of the message; empty before the message has started."""
        self.started = False
        """Whether the message has started."""
        self.complete: MessageComplete | None = None
        """The end of the message; None while the message is arriving."""
        self._request_id = request_id
        self._start = MessageStart()
        self._done: list[ContentBlock] = []
        self._open: ToolUseStart | TextDelta | ThinkingDelta | None = None  # the last block, while it may grow
        self._pieces: list[str] = []
        self._response: CanonicalResponse | None = None

    def process(self, event: TurnEvent | ViewEvent | StreamReset[TurnEvent]) -> None:
        """Add the next event."""
        match event:
            case TextDelta() | ThinkingDelta():
                if type(event) is not type(self._open) or self._index_of_open != event.content_block_index:
                    self._close_block()
                self._open = event
                self._pieces.append(event.text)
            case MessageStart():
                self._begin(event)
            case ToolUseStart():
                self._close_block()
                self._open = event
            case ToolUseEnd():
                if isinstance(start := self._open, ToolUseStart):
                    self._open = None
                    self._done.append(
                        ToolUseBlock(
                            start.tool_use_id, start.tool_name, event.final_input, incomplete=event.incomplete
                        )
                    )
            case ProviderEvent(content_block_index=None):
                pass  # it belongs to no block
            case ProviderBlock() | ProviderEvent():
                self._close_block()
                raw: JsonObject = event.raw if isinstance(event.raw, dict) else {"value": event.raw}
                self._done.append(OpaqueBlock(event.kind, ProviderRaw("", raw)))
            case MessageComplete():
                self.complete = event
            case Finish():
                self._response = event.response
            case StreamReset():
                self._begin(MessageStart())
                self.started = False
                for earlier in event.snapshot:
                    self.process(earlier)
            case _:
                # Arguments are used only from the complete call. Events between messages belong to no message.
                pass

    def response(self) -> CanonicalResponse:
        """The reply. An incomplete reply is returned as if it were cut off now.

        It lacks data that the events do not contain, such as the latency.

        Raises:
            CallboardError: No message has started.
        """
        if self._response is not None:
            return self._response
        if not self.started:
            raise CallboardError("no message has started yet, so there is no response")
        complete = self.complete or MessageComplete(
            with_whole_calls(self.content, StopReason.CANCELLED),
            StopReason.CANCELLED,
            None,
            TokenUsage(source=UsageSource.PARTIAL),
            self.message_id,
        )
        return CanonicalResponse(
            request_id=self._request_id,
            model=f"{self._start.provider}:{self._start.model}",
            provider=self._start.provider,
            content=complete.final_content,
            stop_reason=complete.stop_reason,
            raw_stop_reason=complete.raw_stop_reason,
            usage=complete.usage,
            warnings=self._start.warnings,
        )

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks that have arrived so far."""
        if self.complete is not None:
            return self.complete.final_content
        growing = self._growing()
        return (*self._done, growing) if growing is not None else tuple(self._done)

    def closing_events(self, stop_reason: StopReason, usage: TokenUsage) -> list[StreamEvent]:
        """The events that end an incomplete message. Empty if the message is complete."""
        if self.complete is not None or not self.started:
            return []
        events: list[StreamEvent] = []
        if isinstance(start := self._open, ToolUseStart):
            events.append(ToolUseEnd(start.tool_use_id, {}, True, start.content_block_index, self.message_id))
        content = with_whole_calls(self.content, stop_reason)
        events.append(MessageComplete(content, stop_reason, None, usage, self.message_id))
        return events

    def _begin(self, start: MessageStart) -> None:
        self.started, self.message_id, self._start = True, start.message_id, start
        self.complete = self._response = self._open = None
        self._done, self._pieces = [], []

    @property
    def _index_of_open(self) -> int:
        return self._open.content_block_index if self._open is not None else -1

    def _growing(self) -> ContentBlock | None:
        match self._open:
            case TextDelta():
                return TextBlock("".join(self._pieces))
            case ThinkingDelta(signature=signature):
                return ThinkingBlock("".join(self._pieces), signature)
            case ToolUseStart(tool_use_id=tool_use_id, tool_name=name):
                return ToolUseBlock(tool_use_id, name, {}, incomplete=True)
            case None:
                return None
            case _:
                assert_never(self._open)

    def _close_block(self) -> None:
        growing = self._growing()
        if growing is not None:
            self._done.append(growing)
        self._open, self._pieces = None, []

"""From stream events back to a message: what a reader of deltas has at any moment."""

from __future__ import annotations

import msgspec

from adapters import CanonicalResponse
from bus.content import ContentBlock, OpaqueBlock, ProviderRaw, TextBlock, ThinkingBlock, ToolUseBlock
from bus.json_types import JsonObject
from bus.stream_events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from bus.usage import StopReason, TokenUsage


class StreamAccumulator:
    """`process(event)` in order; `content` is what has arrived, `closing_events()` what would end it now."""

    def __init__(self) -> None:
        self.message_id = ""
        self.started = False
        self.complete: MessageComplete | None = None
        self._blocks: dict[int, ContentBlock] = {}
        self._open_tool: ToolUseStart | None = None

    def process(self, event: StreamEvent) -> None:
        match event:
            case MessageStart():
                self.started = True
                self.message_id = event.message_id
            case TextDelta():
                known = self._blocks.get(event.content_block_index)
                before = known.text if isinstance(known, TextBlock) else ""
                self._blocks[event.content_block_index] = TextBlock(before + event.text)
            case ThinkingDelta():
                known = self._blocks.get(event.content_block_index)
                before = known.text if isinstance(known, ThinkingBlock) else ""
                self._blocks[event.content_block_index] = ThinkingBlock(before + event.text, event.signature)
            case ToolUseStart():
                self._open_tool = event
                self._blocks[event.content_block_index] = ToolUseBlock(
                    event.tool_use_id, event.tool_name, {}, incomplete=True
                )
            case ToolUseInputDelta():
                pass  # the arguments count once they are whole
            case ToolUseEnd():
                self._open_tool = None
                call = self._blocks.get(event.content_block_index)
                if isinstance(call, ToolUseBlock):
                    self._blocks[event.content_block_index] = msgspec.structs.replace(
                        call, input=event.final_input, incomplete=event.incomplete
                    )
            case ProviderBlock():
                raw: JsonObject = event.raw if isinstance(event.raw, dict) else {"value": event.raw}
                self._blocks[event.content_block_index] = OpaqueBlock(event.kind, ProviderRaw("", raw))
            case MessageComplete():
                self.complete = event

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        if self.complete is not None:
            return self.complete.final_content
        return tuple(self._blocks[index] for index in sorted(self._blocks))

    def closing_events(self, stop_reason: StopReason, usage: TokenUsage) -> list[StreamEvent]:
        """What keeps the stream invariants when nothing more will come; empty if the message has its end."""
        if self.complete is not None or not self.started:
            return []
        events: list[StreamEvent] = []
        if self._open_tool is not None:
            start = self._open_tool
            events.append(ToolUseEnd(start.tool_use_id, {}, True, start.content_block_index, self.message_id))
        events.append(MessageComplete(self.content, stop_reason, None, usage, self.message_id))
        return events


def whole_reply_events(message_id: str, response: CanonicalResponse) -> list[StreamEvent]:
    """A reply that was not streamed, as the events of a stream in whole pieces."""
    events: list[StreamEvent] = [MessageStart(message_id, response.model.partition(":")[2], response.provider)]
    for index, block in enumerate(response.content):
        match block:
            case TextBlock():
                events.append(TextDelta(block.text, index, message_id))
            case ThinkingBlock():
                events.append(ThinkingDelta(block.text, block.signature, index, message_id))
            case ToolUseBlock():
                text = block.raw_arguments or msgspec.json.encode(block.input).decode()
                events.append(ToolUseStart(block.id, block.name, index, message_id))
                events.append(ToolUseInputDelta(block.id, text, index, message_id))
                events.append(ToolUseEnd(block.id, block.input, block.incomplete, index, message_id))
            case OpaqueBlock():
                events.append(ProviderBlock(block.kind, block.provider_raw.data, index, message_id))
            case _:
                events.append(ProviderBlock(type(block).__name__, None, index, message_id))
    events.append(
        MessageComplete(
            response.content, response.stop_reason, response.raw_stop_reason, response.usage, message_id
        )
    )
    return events

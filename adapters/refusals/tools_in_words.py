"""Exchanges with tools that a provider doesn't accept, told in words. No exchange is lost, and no tool runs again.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role


def tell_tools(
    messages: Iterable[Message], told: Mapping[str, ToolUseBlock], wire_ids: Collection[str]
) -> Iterator[Message]:
    """The messages with those calls and their results in words.

    Args:
        told: Calls by our ids.
        wire_ids: What the same calls are known by on the wire.
    """
    for message in messages:
        match message.role:
            case Role.ASSISTANT:
                kept = tuple(block for block in message.content if not _is_told(block, told, wire_ids))
                if kept != message.content:  # reasoning is bound to what followed it
                    kept = tuple(
                        block for block in kept if not isinstance(block, ThinkingBlock | RedactedThinkingBlock)
                    )
            case Role.TOOL:
                results = [block for block in message.content if isinstance(block, ToolResultBlock)]
                kept = tuple(block for block in results if block.tool_use_id not in told)
                yield from (
                    _told(told[block.tool_use_id], block) for block in results if block.tool_use_id in told
                )
            case _:
                kept = message.content
        if kept == message.content:
            yield message
        elif kept:
            yield msgspec.structs.replace(message, content=kept)


def _is_told(block: ContentBlock, told: Mapping[str, ToolUseBlock], wire_ids: Collection[str]) -> bool:
    match block:
        case ToolUseBlock():
            return block.id in told
        case OpaqueBlock():
            return block.provider_raw.data.get("call_id") in wire_ids
        case _:
            return False


def _told(call: ToolUseBlock, result: ToolResultBlock) -> Message:
    arguments = msgspec.json.encode(call.input, order="deterministic").decode()
    how = "failed" if result.is_error else "answered"
    said = TextBlock(f"The tool {call.name} was called with {arguments} and {how}:")
    if isinstance(result.content, str):
        return Message.user((said, TextBlock(result.content)))
    content: tuple[ResultPart, ...] = result.content
    return Message.user((said, *content))

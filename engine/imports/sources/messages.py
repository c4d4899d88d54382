"""Messages of session files as Callboard's messages, for imports with content.

Text, thinking, calls of tools and their results are kept. Other blocks, such as images, are named and left out.
"""

from __future__ import annotations

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role

_decode = msgspec.json.Decoder(Json).decode


def anthropic_message(role: str, raw: msgspec.Raw, message_id: str | None) -> Message | None:
    """A message of the Messages API from its content; None without content that can be kept."""
    try:
        content = _decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if isinstance(content, str):
        return Message(Role.USER if role == "user" else Role.ASSISTANT, (TextBlock(content),), message_id)
    blocks = [block for each in content if (block := _anthropic_block(each))] if isinstance(content, list) else []
    return _message(role, blocks, message_id)


def responses_message(item: JsonObject) -> Message | None:
    """An item of the Responses API as a message; None for one without content that can be kept."""
    mine = item.get("id")
    message_id = mine if isinstance(mine, str) else None
    match item.get("type"):
        case "message":
            blocks: list[ContentBlock] = [TextBlock(_text(item.get("content")))]
            return _message(str(item.get("role")), blocks, message_id)
        case "function_call" | "custom_tool_call":
            arguments = item.get("arguments") or item.get("input")
            blocks = [ToolUseBlock(str(item.get("call_id")), str(item.get("name")), _object(arguments))]
            return _message("assistant", blocks, message_id)
        case "function_call_output" | "custom_tool_call_output":
            return _message(
                "user", [ToolResultBlock(str(item.get("call_id")), _text(item.get("output")))], message_id
            )
        case _:
            return None


def _message(role: str, blocks: list[ContentBlock], message_id: str | None) -> Message | None:
    """A message; results of tools are one of their own role."""
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    if results:
        return Message(Role.TOOL, tuple(results), message_id)
    if not blocks or role not in ("user", "assistant"):
        return None
    known = (TextBlock,) if role == "user" else (TextBlock, ThinkingBlock, ToolUseBlock)
    return Message(Role(role), tuple(block for block in blocks if isinstance(block, known)), message_id)


def _anthropic_block(block: Json) -> ContentBlock | None:
    if not isinstance(block, dict):
        return None
    match block.get("type"):
        case "text":
            return TextBlock(_text(block.get("text")))
        case "thinking":
            return ThinkingBlock(_text(block.get("thinking")))
        case "tool_use":
            return ToolUseBlock(str(block.get("id")), str(block.get("name")), _object(block.get("input")))
        case "tool_result":
            failed = block.get("is_error") is True
            return ToolResultBlock(str(block.get("tool_use_id")), _text(block.get("content")), failed)
        case kind:
            return TextBlock(f"[{kind}]") if isinstance(kind, str) and kind.isidentifier() else None


def _text(value: Json) -> str:
    """The text of a value: itself, or the texts of its parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_text(each.get("text")) if isinstance(each, dict) else _text(each) for each in value)
    return ""


def _object(value: Json) -> JsonObject:
    if isinstance(value, str):
        try:
            value = _decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return {"input": value}
    return value if isinstance(value, dict) else {}

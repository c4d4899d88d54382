"""Converts messages of other programs to Callboard's, for imports with content.

It reads the formats of the Messages API, Chat Completions, Responses, Gemini and OpenTelemetry. Text, thinking,
tool calls and their results are kept. Other blocks, such as images, are replaced by their names. Instructions are
left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role

from ..source import ImportedMessage

_decode = msgspec.json.Decoder(Json).decode
_DEEPEST = 8

_ROLES = {
    **{"user": Role.USER, "human": Role.USER},
    **{"assistant": Role.ASSISTANT, "model": Role.ASSISTANT, "ai": Role.ASSISTANT, "gemini": Role.ASSISTANT},
    **{"tool": Role.TOOL, "function": Role.TOOL, "tool_result": Role.TOOL},
}
_KINDS = {
    Role.USER: (TextBlock,),
    Role.ASSISTANT: (TextBlock, ThinkingBlock, ToolUseBlock),
    Role.TOOL: (ToolResultBlock,),
}
_TEXT = frozenset(("text", "input_text", "output_text"))
_THINKING = frozenset(("thinking", "reasoning"))
_USE = frozenset(("tool_use", "tool_call", "tool-call", "function_call", "custom_tool_call", "functionCall"))
_RESULT = frozenset(
    (
        *("tool_result", "tool_call_response", "tool-result", "function_call_output", "custom_tool_call_output"),
        "functionResponse",
    )
)


def decoded(raw: msgspec.Raw | bytes | str) -> Json:
    """The value of a JSON text; None if it is not JSON."""
    try:
        found: Json = _decode(raw)
        return found
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def message_of(value: Json, role: str = "user", message_id: str | None = None) -> Message | None:
    """One message; None if it has no supported content.

    Args:
        value: A message with its role, an item of the Responses API, a list of blocks, or a text.
        role: The role if the value has none.
        message_id: The message's id.
    """
    inner = value
    blocks: list[ContentBlock] = []
    if isinstance(value, dict):
        told = value.get("role")
        role = told if isinstance(told, str) else role
        inner = next((value[name] for name in ("content", "parts") if value.get(name) is not None), None)
        if role in ("tool", "function") and "tool_call_id" in value:
            blocks, inner = [ToolResultBlock(str(value["tool_call_id"]), _text(inner))], None
        elif ("role" not in value and inner is None) or value.get("type") in _RESULT:
            inner = [value]
    blocks += _blocks(inner)
    if isinstance(value, dict):
        calls = value.get("tool_calls")
        blocks += [block for each in calls if (block := _block(each))] if isinstance(calls, list) else []
    return made(role, blocks, message_id)


def made(role: str, blocks: Iterable[ContentBlock], message_id: str | None = None) -> Message | None:
    """A message with the blocks that its role allows. Tool results become a separate message."""
    blocks = list(blocks)
    kind = _ROLES.get(role.lower())
    if any(isinstance(block, ToolResultBlock) for block in blocks):
        kind = Role.TOOL
    elif any(isinstance(block, ToolUseBlock | ThinkingBlock) for block in blocks):
        kind = Role.ASSISTANT
    if kind is None:
        return None
    kept = tuple(block for block in blocks if isinstance(block, _KINDS[kind]))
    return Message(kind, kept, message_id) if kept else None


def messages_of(value: Json, role: str = "user", depth: int = 0) -> Iterator[Message]:
    """The messages of a request or a reply, in any format of gateways and tracers."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        value = decoded(value) or value
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        for name in ("messages", "choices", "candidates", "contents", "output", "input", "message", "content"):
            inner = value.get(name)
            is_whole = name in ("message", "content") and "role" not in value
            if (isinstance(inner, list) and name != "content") or (is_whole and isinstance(inner, dict)):
                of_reply = name in ("choices", "candidates", "output")
                yield from messages_of(inner, "assistant" if of_reply else role, depth + 1)
                return
    if isinstance(value, list) and any(_is_message(each) for each in value):
        for each in value:
            yield from messages_of(each, role, depth + 1)
        return
    found = message_of(value, role)
    if found is None and isinstance(value, dict) and value and "role" not in value:
        found = message_of(msgspec.json.encode(value).decode(), role)
    if found is not None:
        yield found


def conversation(session: str, at: int, asked: Json, said: Json) -> Iterator[ImportedMessage]:
    """The messages of a call. Later calls repeat them, so a message's id is a hash of its content.

    Args:
        session: The session.
        at: The time of the call, in microseconds since the epoch.
        asked: The messages of the request.
        said: The reply.
    """
    counts: Counter[str] = Counter()
    for message in (*messages_of(asked), *messages_of(said, "assistant")):
        tools = [
            block.tool_use_id if isinstance(block, ToolResultBlock) else block.id
            for block in message.content
            if isinstance(block, ToolUseBlock | ToolResultBlock)
        ]
        encoded = msgspec.json.encode((message.role, message.text.strip(), tools))
        name = hashlib.blake2b(encoded, digest_size=16).hexdigest()
        counts[name] += 1
        yield ImportedMessage(identity=f"{name}/{counts[name]}", session=session, at=at, message=message)


def _is_message(value: Json) -> bool:
    return isinstance(value, dict) and bool({"role", "message", "content", "parts"} & value.keys())


def _blocks(value: Json) -> list[ContentBlock]:
    if isinstance(value, str):
        return [TextBlock(value)] if value else []
    return [block for each in value if (block := _block(each))] if isinstance(value, list) else []


def _block(block: Json) -> ContentBlock | None:
    if isinstance(block, str):
        return TextBlock(block)
    if not isinstance(block, dict):
        return None
    told = block.get("type")
    kind = (
        told
        if isinstance(told, str)
        else next((name for name in ("functionCall", "functionResponse") if name in block), "text")
    )
    inner = next((found for name in (kind, "function") if isinstance(found := block.get(name), dict)), block)
    if kind in _THINKING or (kind == "text" and block.get("thought") is True):
        return ThinkingBlock(_text(_first(block, "thinking", "text", "content")))
    if kind in _TEXT:
        text = _text(_first(block, "text", "content"))
        return TextBlock(text) if text else None
    if kind in _USE or inner is block.get("function"):
        name, given = str(_first(inner, "name", "toolName")), _first(inner, "arguments", "input", "args")
        return ToolUseBlock(_id(block, inner), name, _object(given))
    if kind in _RESULT:
        text = _text(_first(inner, "content", "output", "response", "result"))
        return ToolResultBlock(_id(block, inner), text, block.get("is_error") is True)
    return TextBlock(f"[{kind}]") if kind.isidentifier() else None


def _id(block: JsonObject, inner: JsonObject) -> str:
    names = ("tool_use_id", "call_id", "tool_call_id", "toolCallId", "id")
    return str(_first(block, *names) or _first(inner, *names) or inner.get("name"))


def _first(value: JsonObject, *names: str) -> Json:
    return next((found for name in names if (found := value.get(name)) is not None), None)


def _text(value: Json) -> str:
    """The text of a value: the text itself, or the joined texts of its parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(
            _text(_first(each, "text", "content") if isinstance(each, dict) else each) for each in value
        )
    if isinstance(value, dict):
        return (
            _text(found)
            if (found := _first(value, "output", "text", "content"))
            else msgspec.json.encode(value).decode()
        )
    return ""


def _object(value: Json) -> JsonObject:
    if isinstance(value, str):
        found = decoded(value)
        return found if isinstance(found, dict) else {"input": value}
    return value if isinstance(value, dict) else {}

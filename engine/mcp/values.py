"""Conversions between MCP's values and the engine's: tools, results and messages."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import assert_never

import mcp_types as types
import msgspec

from callboard.adapters import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    Message,
    Role,
    StopReason,
    TextBlock,
    ToolAnnotations,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ResultPart

from ..tools.context import ResultContent

# --- Tools ---

LONGEST_NAME = 64


def legal_names(names: Iterable[str], prefix: str = "") -> dict[str, str]:
    """A distinct, valid name for each of a server's names. A name that is already valid is not changed. Pure.

    If names would become equal, a digest of the original name is added, so the result doesn't depend on their
    order.
    """
    originals = list(dict.fromkeys(names))
    candidates = {name: _legal(prefix + name) for name in originals}
    found: dict[str, str] = {}
    for name, candidate in candidates.items():
        unchanged = candidate == prefix + name
        alone = sum(other == candidate for other in candidates.values()) == 1
        found[name] = candidate if unchanged or alone else _with_digest(candidate, name)
    return found


def _legal(name: str) -> str:
    legal = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not legal[:1].isalpha():
        legal = f"t_{legal}"
    return legal if len(legal) <= LONGEST_NAME else _with_digest(legal, name)


def _with_digest(legal: str, original: str) -> str:
    digest = hashlib.sha256(original.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{legal[: LONGEST_NAME - 9]}_{digest}"


def definition_of(tool: types.Tool, name: str) -> ToolDefinition:
    schema: JsonObject = {"properties": {}, **tool.input_schema, "type": tool.input_schema.get("type", "object")}
    return ToolDefinition(
        name=name,
        description=tool.description or tool.title or "",
        input_schema=schema,
        annotations=annotations_of(tool),
    )


def tool_of(definition: ToolDefinition) -> types.Tool:
    """Convert a tool definition of the engine to MCP's type."""
    hints = definition.annotations
    return types.Tool(
        name=definition.name,
        description=definition.description,
        input_schema=definition.input_schema,
        annotations=None
        if hints is None
        else types.ToolAnnotations(
            title=hints.title,
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def annotations_of(tool: types.Tool) -> ToolAnnotations | None:
    """The server's own hints about a tool. They are only claims, unless the server is trusted."""
    hints = tool.annotations
    title = tool.title or (hints.title if hints is not None else None)
    if hints is None:
        return ToolAnnotations(title=title) if title else None
    return ToolAnnotations(
        read_only=hints.read_only_hint,
        destructive=hints.destructive_hint,
        idempotent=hints.idempotent_hint,
        open_world=hints.open_world_hint,
        title=title,
    )


# --- Results and other content ---


def content_of(result: types.CallToolResult) -> ResultContent:
    """The text and media of a result, or its structured content if there is nothing else.

    If models don't accept a part in a tool's result, such as audio, its name replaces it.
    """
    parts = tuple(part_of(block) for block in result.content)
    if not parts:
        structured = result.structured_content
        return "" if structured is None else msgspec.json.encode(structured).decode()
    if len(parts) == 1 and isinstance(parts[0], TextBlock):
        return parts[0].text
    return parts


def part_of(block: types.ContentBlock) -> ResultPart:
    match block:
        case types.TextContent():
            return TextBlock(block.text)
        case types.ImageContent():
            return ImageBlock(data=b64decode(block.data), media_type=block.mime_type)
        case types.AudioContent():
            return TextBlock(f"(a recording, {block.mime_type}, was left out)")
        case types.ResourceLink():
            return TextBlock(f"{block.title or block.name}: {block.uri}")
        case types.EmbeddedResource():
            return resource_part(block.resource)
        case _:
            assert_never(block)


def resource_part(resource: types.TextResourceContents | types.BlobResourceContents) -> ResultPart:
    if isinstance(resource, types.TextResourceContents):
        return TextBlock(resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    data = b64decode(resource.blob)
    if media_type.startswith("image/"):
        return ImageBlock(data=data, media_type=media_type)
    return DocumentBlock(data=data, media_type=media_type, name=resource.uri.rpartition("/")[2] or None)


def shortened(content: ResultContent, limit: int, note: str) -> ResultContent | None:
    """Shorten content to at most `limit` characters of text, and insert a note for the omitted part. Pure.

    The start and the end are kept, because errors are often at the end. None if the content is short enough.
    """
    texts = (
        [content] if isinstance(content, str) else [part.text for part in content if isinstance(part, TextBlock)]
    )
    if (total := sum(map(len, texts))) <= limit:
        return None
    end = limit // 4
    left_out = range(limit - end, total - end)
    if isinstance(content, str):
        return _without(content, 0, left_out, note.format(count=len(left_out)))
    parts: list[ResultPart] = []
    place = 0
    for part in content:
        if not isinstance(part, TextBlock):
            parts.append(part)
            continue
        start, place = place, place + len(part.text)
        if text := _without(part.text, start, left_out, note.format(count=len(left_out))):
            parts.append(TextBlock(text))
    return tuple(parts)


def _without(text: str, start: int, left_out: range, note: str) -> str:
    """A part of the text from `start`, with a note instead of the omitted part."""
    first = min(max(left_out.start - start, 0), len(text))
    last = min(max(left_out.stop - start, 0), len(text))
    begins_here = start <= left_out.start < start + len(text)
    return text[:first] + (f"\n{note}\n" if begins_here else "") + text[last:]


def blocks_for(content: str | Sequence[ContentBlock]) -> list[types.ContentBlock]:
    """Convert the engine's content to MCP's, for another host."""
    parts = (TextBlock(content),) if isinstance(content, str) else content
    return [found for part in parts if (found := _block_for(part)) is not None]


def _block_for(
    part: ContentBlock,
) -> types.TextContent | types.ImageContent | types.AudioContent | types.EmbeddedResource | None:
    match part:
        case TextBlock():
            return types.TextContent(type="text", text=part.text)
        case ImageBlock(data=bytes(data)):
            media_type = part.media_type or "image/png"
            return types.ImageContent(type="image", data=b64encode(data).decode(), mime_type=media_type)
        case AudioBlock(data=bytes(data), media_type=str(kind)):
            return types.AudioContent(type="audio", data=b64encode(data).decode(), mime_type=kind)
        case DocumentBlock(data=bytes(data), media_type=str(kind)) if kind.startswith("audio/"):
            return types.AudioContent(type="audio", data=b64encode(data).decode(), mime_type=kind)
        case ImageBlock(url=str(url)) | DocumentBlock(url=str(url)) | AudioBlock(url=str(url)):
            return types.TextContent(type="text", text=url)
        case DocumentBlock(data=bytes(data)):
            name = part.name or "document"
            uri = name if "://" in name else f"callboard:///{name}"
            return types.EmbeddedResource(type="resource", resource=resource_contents(uri, data, part.media_type))
        case _:
            return None


def resource_contents(
    uri: str, data: bytes, media_type: str | None
) -> types.TextResourceContents | types.BlobResourceContents:
    """Convert data for another host: to text if it is UTF-8 and not media, otherwise to base64."""
    if not (media_type or "").startswith(("image/", "audio/", "video/")):
        try:
            return types.TextResourceContents(uri=uri, mime_type=media_type or "text/plain", text=data.decode())
        except UnicodeDecodeError:
            pass
    kind = media_type or "application/octet-stream"
    return types.BlobResourceContents(uri=uri, mime_type=kind, blob=b64encode(data).decode())


# --- Messages of prompts and of sampling requests ---


def message_of_prompt(message: types.PromptMessage) -> Message:
    role = Role.ASSISTANT if message.role == "assistant" else Role.USER
    return Message(role, (_sampled(message.content),))


def messages_of(sampled: Iterable[types.SamplingMessage]) -> tuple[Message, ...]:
    """Convert the messages of a sampling request. Tool results become separate messages."""
    found: list[Message] = []
    for message in sampled:
        contents = message.content if isinstance(message.content, list) else [message.content]
        blocks = [_sampled(block) for block in contents]
        results = tuple(block for block in blocks if isinstance(block, ToolResultBlock))
        rest = tuple(block for block in blocks if not isinstance(block, ToolResultBlock))
        if results:
            found.append(Message(Role.TOOL, results))
        if rest:
            found.append(Message(Role.ASSISTANT if message.role == "assistant" else Role.USER, rest))
    return tuple(found)


def _sampled(block: types.SamplingMessageContentBlock | types.ContentBlock) -> ContentBlock:
    match block:
        case types.AudioContent():
            return AudioBlock(data=b64decode(block.data), media_type=block.mime_type)
        case types.ToolUseContent():
            return ToolUseBlock(block.id, block.name, block.input)
        case types.ToolResultContent():
            parts = tuple(part_of(part) for part in block.content)
            return ToolResultBlock(block.tool_use_id, parts, is_error=bool(block.is_error))
        case _:
            return part_of(block)


_STOP_REASONS = {
    StopReason.END_TURN: "endTurn",
    StopReason.STOP_SEQUENCE: "stopSequence",
    StopReason.MAX_TOKENS: "maxTokens",
    StopReason.TOOL_USE: "toolUse",
}


def sampling_result(
    content: Sequence[ContentBlock], model: str, stop_reason: StopReason
) -> types.CreateMessageResult | types.CreateMessageResultWithTools:
    """Convert a model's reply for a server's sampling request. Only text, images and tool calls are included."""
    blocks: list[types.TextContent | types.ImageContent | types.ToolUseContent] = []
    for block in content:
        if isinstance(block, ToolUseBlock):
            blocks.append(types.ToolUseContent(type="tool_use", id=block.id, name=block.name, input=block.input))
        elif isinstance(found := _block_for(block), types.TextContent | types.ImageContent):
            blocks.append(found)
    reason = _STOP_REASONS.get(stop_reason, str(stop_reason))
    if len(blocks) == 1 and not isinstance(blocks[0], types.ToolUseContent):
        return types.CreateMessageResult(role="assistant", content=blocks[0], model=model, stop_reason=reason)
    if any(isinstance(block, types.ToolUseContent) for block in blocks):
        return types.CreateMessageResultWithTools(
            role="assistant", content=list(blocks), model=model, stop_reason=reason
        )
    text = "".join(block.text for block in blocks if isinstance(block, types.TextContent))
    text_content = types.TextContent(type="text", text=text)
    return types.CreateMessageResult(role="assistant", content=text_content, model=model, stop_reason=reason)

"""The values of an MCP server as ours: its tools, their names and annotations, and their results.

This module needs the official client library, so import it only where that is wanted.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Iterable
from typing import assert_never

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types import ContentBlock as McpBlock
from mcp_types import Tool as ServerTool

from callboard.adapters import DocumentBlock, ImageBlock, TextBlock, ToolAnnotations, ToolDefinition
from callboard.bus.values.content import ResultPart
from callboard.bus.values.json import JsonObject

from ..results import ResultContent, ToolError

LONGEST_NAME = 64


def legal_names(names: Iterable[str], prefix: str = "") -> dict[str, str]:
    """A legal name for each name of a server. All are different, and a legal name stays as it is. Pure.

    Two names that become the same are told apart by a digest of the original, so that neither depends on the
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


def definition_of(tool: ServerTool, name: str) -> ToolDefinition:
    """The definition of a server's tool.

    Raises:
        ValueError: The schema can't be used.
    """
    schema: JsonObject = {"properties": {}, **tool.input_schema, "type": tool.input_schema.get("type", "object")}
    return ToolDefinition(
        name=name,
        description=tool.description or tool.title or "",
        input_schema=schema,
        annotations=annotations_of(tool),
    )


def annotations_of(tool: ServerTool) -> ToolAnnotations | None:
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


def content_of(result: CallToolResult) -> ResultContent:
    """The text and media of a result, or its structured content if there is nothing else.

    A part that models take in no tool's result, such as sound, is replaced by its name.

    Raises:
        ToolError: The result is an error.
    """
    parts = tuple(_part(block) for block in result.content)
    content: ResultContent = parts
    if not parts:
        structured = result.structured_content
        content = "" if structured is None else msgspec.json.encode(structured).decode()
    elif len(parts) == 1 and isinstance(parts[0], TextBlock):
        content = parts[0].text
    if result.is_error:
        raise ToolError(content or "The tool failed without saying why.")
    return content


def _part(block: McpBlock) -> ResultPart:
    match block:
        case TextContent():
            return TextBlock(block.text)
        case ImageContent():
            return ImageBlock(data=b64decode(block.data), media_type=block.mime_type)
        case AudioContent():
            return TextBlock(f"(a recording, {block.mime_type}, was left out)")
        case ResourceLink():
            return TextBlock(f"{block.title or block.name}: {block.uri}")
        case EmbeddedResource():
            return _resource(block.resource)
        case _:
            assert_never(block)


def _resource(resource: TextResourceContents | BlobResourceContents) -> ResultPart:
    if isinstance(resource, TextResourceContents):
        return TextBlock(resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    data = b64decode(resource.blob)
    if media_type.startswith("image/"):
        return ImageBlock(data=data, media_type=media_type)
    return DocumentBlock(data=data, media_type=media_type, name=resource.uri.rpartition("/")[2] or None)

"""Reads messages and content blocks of the Messages API into canonical ones. Pure.

If a field has no canonical equivalent, it is stored in the block's `provider_raw`. An unknown block becomes an
opaque block. The tool results of a user's turn become a separate message before the other content.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator

from callboard.adapters.providers.anthropic.messages import IN_WORDS, in_words
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    ResultPart,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

from .messages_fields import (
    IMAGE_LEFT_OUT,
    PROTOCOL,
    Losses,
    bad,
    bool_at,
    canonical_tool_id,
    canonical_tool_name,
    is_own_signature,
    list_at,
    object_at,
    read_thinking,
    required,
    text_at,
)

_BILLING = "x-anthropic-billing-header:"
"""The start of Claude Code's first system block, which differs in each request (anthropics/claude-code#68900)."""


_WORDS = TextBlock(IMAGE_LEFT_OUT)


class ContentReader:
    """Reads the system text and the messages of one request."""

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self.names: dict[str, str] = {}
        """The client's tool names, by canonical name, where they differ."""
        self.has_own_replies = False
        """Whether the history has a reply that the gateway wrote. Such a reply may come from another provider."""

    def name(self, name: str) -> str:
        """The canonical name of a tool. The client's name is recorded if it differs."""
        canonical = canonical_tool_name(name)
        if canonical != name:
            self.names[canonical] = name
            self.losses.changed(f"tool {name[:100]!r}", f"its name is {canonical!r} for the provider")
        return canonical

    def system(self, value: Json) -> tuple[str | None, list[Message]]:
        """The system text. If a part has additional fields, the parts are returned as messages."""
        if value is None or isinstance(value, str):
            return value or None, []
        parts = [
            self._text(object_at(part, f"system.{at}"), f"system.{at}")
            for at, part in enumerate(list_at(value, "system"))
        ]
        if parts and parts[0].text.startswith(_BILLING):
            self.losses.content(
                "system block of billing", "it differs in each request, which defeats prompt caches"
            )
            del parts[0]
        if any(part.provider_raw is not None for part in parts):
            return None, [Message(Role.SYSTEM, (part,)) for part in parts]
        return "\n\n".join(part.text for part in parts if part.text.strip()) or None, []

    def messages(self, value: Json) -> list[Message]:
        entries = list_at(value, "messages")
        if not entries:
            raise bad("messages", "at least one message is required")
        turns: list[tuple[str, list[ContentBlock]]] = []
        for at, message in enumerate(entries):
            role, blocks = self._role_and_blocks(object_at(message, f"messages.{at}"), f"messages.{at}")
            # Anthropic treats consecutive messages of a role as one turn, and parallel calls may be in several
            # messages.
            if turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            else:
                turns.append((role, blocks))
        return [message for role, blocks in turns for message in self._turn(role, blocks)]

    def _role_and_blocks(self, fields: JsonObject, path: str) -> tuple[str, list[ContentBlock]]:
        """The role and the blocks of one message."""
        role = required(fields, "role", f"{path}.role")
        if role not in ("user", "assistant", "system"):
            raise bad(f"{path}.role", "Input should be 'user' or 'assistant'")
        at_content = f"{path}.content"
        content = required(fields, "content", at_content)
        if isinstance(content, str):
            return role, [TextBlock(content)]
        blocks = [
            self._block(object_at(block, f"{at_content}.{at}"), f"{at_content}.{at}", role)
            for at, block in enumerate(list_at(content, at_content))
        ]
        if role == "assistant" and _WORDS in blocks:
            blocks = [block for block in blocks if block != _WORDS]
        return role, blocks

    def _turn(self, role: str, blocks: list[ContentBlock]) -> Iterator[Message]:
        if role == "assistant":
            yield Message(Role.ASSISTANT, tuple(blocks))
        elif role == "user":
            results = tuple(block for block in blocks if isinstance(block, ToolResultBlock))
            if results:
                yield Message(Role.TOOL, results)
            rest = tuple(block for block in blocks if not isinstance(block, ToolResultBlock))
            if rest or not results:
                yield Message(Role.USER, rest)
        else:
            self.losses.changed("system message", "some providers receive it at the front of the conversation")
            texts = tuple(block for block in blocks if isinstance(block, TextBlock))
            if texts:
                yield Message(Role.DEVELOPER, texts)

    def _block(self, block: JsonObject, path: str, role: str) -> ContentBlock:
        kind = text_at(required(block, "type", f"{path}.type"), f"{path}.type")
        path = f"{path}.{kind}"
        match kind, role:
            case "text", _:
                return self._text(block, path)
            case "image", "user":
                return self._image(block, path)
            case "document", "user":
                return self._document(block, path)
            case "search_result", "user":
                return self._search_result(block)
            case "tool_result", "user":
                return self._tool_result(block, path)
            case "tool_use", "assistant":
                return self._tool_use(block, path)
            case "thinking", "assistant":
                text = text_at(required(block, "thinking", f"{path}.thinking"), f"{path}.thinking")
                signature = text_at(block.get("signature") or "", f"{path}.signature")
                self.has_own_replies = self.has_own_replies or is_own_signature(signature)
                return read_thinking(text, signature)
            case "redacted_thinking", "assistant":
                return RedactedThinkingBlock(text_at(required(block, "data", f"{path}.data"), f"{path}.data"))
            case "tool_result", _:
                raise bad(path, "`tool_result` blocks can only be in `user` messages")
            case (("tool_use" | "thinking" | "redacted_thinking"), _):
                raise bad(path, f"`{kind}` blocks can only be in `assistant` messages")
            case _:
                return self._opaque(block, kind)

    def _opaque(self, block: JsonObject, kind: str) -> OpaqueBlock:
        self.losses.content(kind)
        if "cache_control" in block:
            self.losses.field("cache_control")
        return OpaqueBlock(kind, ProviderRaw(PROTOCOL, block))

    def _search_result(self, block: JsonObject) -> TextBlock | OpaqueBlock:
        """A search result as text for other providers. A provider of the Messages API receives the block
        itself.
        """
        words = in_words(block)
        if words is None:
            return self._opaque(block, "search_result")
        self.losses.changed("search_result", "other providers receive it as text, without citations")
        return TextBlock(words, ProviderRaw(PROTOCOL, {IN_WORDS: block}))

    def _raw(self, block: JsonObject, *known_fields: str) -> ProviderRaw | None:
        """The fields of a block that have no canonical equivalent."""
        rest: JsonObject = {
            name: value
            for name, value in block.items()
            if name != "type" and name not in known_fields and value is not None
        }
        if not rest:
            return None
        self.losses.fields(str(block.get("type") or "text"), rest)
        return ProviderRaw(PROTOCOL, rest)

    def _text(self, block: JsonObject, path: str) -> TextBlock:
        text = text_at(required(block, "text", f"{path}.text"), f"{path}.text")
        return TextBlock(text, self._raw(block, "text"))

    def _tool_use(self, block: JsonObject, path: str) -> ToolUseBlock:
        call_id = text_at(required(block, "id", f"{path}.id"), f"{path}.id")
        name = text_at(required(block, "name", f"{path}.name"), f"{path}.name")
        arguments = object_at(required(block, "input", f"{path}.input"), f"{path}.input")
        canonical_id = canonical_tool_id(call_id)
        self.has_own_replies = self.has_own_replies or canonical_id != call_id
        return ToolUseBlock(
            canonical_id,
            self.name(name),
            arguments,
            provider_raw=self._raw(block, "id", "name", "input"),
        )

    def _tool_result(self, block: JsonObject, path: str) -> ToolResultBlock:
        call_id = text_at(required(block, "tool_use_id", f"{path}.tool_use_id"), f"{path}.tool_use_id")
        value = block.get("content")
        content: str | tuple[ResultPart, ...] = ""
        if isinstance(value, str):
            content = value
        elif value is not None:
            content = tuple(
                self._part(object_at(part, f"{path}.content.{at}"), f"{path}.content.{at}")
                for at, part in enumerate(list_at(value, f"{path}.content"))
            )
        return ToolResultBlock(
            canonical_tool_id(call_id),
            content,
            bool_at(block.get("is_error") or False, f"{path}.is_error"),
            self._raw(block, "tool_use_id", "content", "is_error"),
        )

    def _part(self, block: JsonObject, path: str) -> ResultPart:
        kind = text_at(required(block, "type", f"{path}.type"), f"{path}.type")
        match kind:
            case "text":
                return self._text(block, path)
            case "image":
                return self._image(block, path)
            case "document":
                return self._document(block, path)
            case "search_result":
                return self._search_result(block)
            case _:
                return self._opaque(block, kind)

    def _image(self, block: JsonObject, path: str) -> ImageBlock | OpaqueBlock:
        source = object_at(required(block, "source", f"{path}.source"), f"{path}.source")
        match source:
            case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
                raw = self._raw(block, "source")
                return ImageBlock(
                    data=_decoded(data, f"{path}.source.base64"), media_type=media_type, provider_raw=raw
                )
            case {"type": "url", "url": str(url)}:
                return ImageBlock(url=url, provider_raw=self._raw(block, "source"))
            case {"type": "base64" | "url"} | {"type": None}:
                raise bad(f"{path}.source", "Field required")
            case {"type": kind}:
                self.losses.content(f"image with source {kind}")
                return OpaqueBlock("image", ProviderRaw(PROTOCOL, block))
            case _:
                raise bad(f"{path}.source.type", "Field required")

    def _document(self, block: JsonObject, path: str) -> DocumentBlock | OpaqueBlock:
        source = object_at(required(block, "source", f"{path}.source"), f"{path}.source")
        title = block.get("title")
        name = None if title is None else text_at(title, f"{path}.title")
        match source:
            case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
                content = _decoded(data, f"{path}.source.base64")
                raw = self._raw(block, "source", "title")
                return DocumentBlock(data=content, media_type=media_type, name=name, provider_raw=raw)
            case {"type": "text", "data": str(data)}:
                raw = self._raw(block, "source", "title")
                content = data.encode("utf-8", "replace")
                return DocumentBlock(data=content, media_type="text/plain", name=name, provider_raw=raw)
            case {"type": "url", "url": str(url)}:
                raw = self._raw(block, "source", "title")
                return DocumentBlock(url=url, media_type="application/pdf", name=name, provider_raw=raw)
            case {"type": "content"} if (words := in_words(block)) and words.strip():
                self.losses.changed("document with source content", "other providers receive it as a text file")
                raw = ProviderRaw(PROTOCOL, {IN_WORDS: block})
                content = words.encode("utf-8", "replace")
                return DocumentBlock(data=content, media_type="text/plain", name=name, provider_raw=raw)
            case {"type": "base64" | "text" | "url"} | {"type": None}:
                raise bad(f"{path}.source", "Field required")
            case {"type": kind}:
                self.losses.content(f"document with source {kind}")
                return OpaqueBlock("document", ProviderRaw(PROTOCOL, block))
            case _:
                raise bad(f"{path}.source.type", "Field required")


def _decoded(data: str, path: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except (Base64Error, ValueError) as error:
        raise bad(path, "Invalid base64 data") from error

"""Reads messages and content blocks of the Messages API into canonical ones: their checks, losses and ids. Pure.

If a field has no canonical equivalent, it is stored in the block's `provider_raw`. An unknown block becomes an
opaque block. The tool results of a user's turn become a separate message before the other content. Clients send
ids and signatures back unchanged, so both can contain data for the next request.
"""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator

from callboard.adapters import CallWarning
from callboard.adapters.providers.anthropic.messages import IN_WORDS, in_words
from callboard.bus.errors import WarningCode
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
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

from .failures import BadRequest
from .wire import legal_name, rest_of

PROTOCOL = "anthropic"
"""The adapters' name for the protocol, used to mark its data."""

IMAGE_LEFT_OUT = "[The model made an image. The Messages API has no place for it in a reply.]"
"""The text that replaces an image in a reply. It is removed from histories."""

_WORDS = TextBlock(IMAGE_LEFT_OUT)

_BILLING = "x-anthropic-billing-header:"
"""The start of Claude Code's first system block, which differs in each request (anthropics/claude-code#68900)."""

# --- Checks, with Anthropic's error texts ---


def bad(path: str, why: str) -> BadRequest:
    return BadRequest(f"{path}: {why}", param=path)


def required(fields: JsonObject, name: str, path: str = "") -> Json:
    """The value of a field. `path` is the path of the object."""
    if name not in fields:
        raise bad(path_of(path, name), "Field required")
    return fields[name]


def path_of(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def text_in(fields: JsonObject, name: str, path: str = "") -> str:
    return text_at(required(fields, name, path), path_of(path, name))


def object_in(fields: JsonObject, name: str, path: str = "") -> JsonObject:
    return object_at(required(fields, name, path), path_of(path, name))


def int_in(fields: JsonObject, name: str, path: str, least: int) -> int:
    """An integer of a certain minimum."""
    value, path = required(fields, name, path), path_of(path, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(path, "Input should be a valid integer")
    if value < least:
        raise bad(path, f"Input should be greater than or equal to {least}")
    return value


def text_at(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise bad(path, "Input should be a valid string")
    return value


def object_at(value: Json, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise bad(path, "Input should be a valid dictionary")
    return value


def list_at(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise bad(path, "Input should be a valid list")
    return value


def objects_at(value: Json, path: str) -> Iterator[tuple[JsonObject, str]]:
    for number, item in enumerate(list_at(value, path)):
        yield object_at(item, f"{path}.{number}"), f"{path}.{number}"


def bool_at(value: Json, path: str) -> bool:
    if not isinstance(value, bool):
        raise bad(path, "Input should be a valid boolean")
    return value


def number_at(value: Json, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(path, "Input should be a valid number")
    return float(value)


# --- Losses ---

_HERE_ONLY = "only providers of the Messages API receive it"
_MARK = "cache_control"


class Losses:
    """The parts without a canonical equivalent, with one warning for each kind."""

    def __init__(self) -> None:
        self._found: dict[str, CallWarning] = {}
        self.marked = False
        """Whether the client set prompt cache breakpoints."""

    def field(self, name: str, why: str = _HERE_ONLY) -> None:
        """Record a setting, or a field of a block or a tool."""
        if name.rpartition(".")[2] == _MARK:
            self.marked, name = True, _MARK
        self._note(WarningCode.PARAMETER_DROPPED, name, why)

    def fields(self, above: str, names: Iterable[str]) -> None:
        for name in names:
            self.field(f"{above}.{name}")

    def content(self, kind: str, why: str = _HERE_ONLY) -> None:
        self._note(WarningCode.CONTENT_DROPPED, kind, why)

    def changed(self, name: str, why: str) -> None:
        self._note(WarningCode.PARAMETER_CHANGED, name, why)

    def _note(self, code: WarningCode, subject: str, why: str) -> None:
        self._found.setdefault(subject, CallWarning(code, f"{subject}: {why}"))

    def __iter__(self) -> Iterator[CallWarning]:
        return iter(self._found.values())


# --- Ids of tools, and signatures of thinking ---

OWN_ID = re.compile(r"(?:tu|toolu)_([0-9A-HJKMNP-TV-Z]{26})")
_CLIENTS_ID = re.compile(r"[a-zA-Z0-9_-]+")
_CODED_ID = "toolu_b64_"


def client_tool_id(tool_use_id: str) -> str:
    """Convert a tool call's id for the client. `canonical_tool_id` returns the original id."""
    match = OWN_ID.fullmatch(tool_use_id)
    if match is not None:
        return f"toolu_{match[1]}"
    if _CLIENTS_ID.fullmatch(tool_use_id) and not tool_use_id.startswith(_CODED_ID):
        return tool_use_id
    return _CODED_ID + urlsafe_b64encode(tool_use_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def canonical_tool_id(client_id: str) -> str:
    """Convert a tool call's id from the client."""
    match = OWN_ID.fullmatch(client_id)
    if match is not None:
        return f"tu_{match[1]}"
    if client_id.startswith(_CODED_ID):
        coded = client_id.removeprefix(_CODED_ID)
        try:
            return urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode("utf-8", "surrogatepass")
        except ValueError:
            return client_id
    return client_id


UNSIGNED = "callboard-unsigned"
"""The placeholder for a missing signature of thinking, because clients require one."""

_FOREIGN = "callboard:"
"""The prefix of another provider's signature. The provider's name, a colon and the signature follow."""


def client_signature(signature: str | None, provider: str) -> str:
    """The signature for the client. `read_thinking` reads the original signature from it."""
    if not signature:
        return UNSIGNED
    return signature if provider == PROTOCOL else f"{_FOREIGN}{provider}:{signature}"


def read_thinking(text: str, signature: str) -> ThinkingBlock:
    """Read thinking from a client. If the provider's original signature is known, the block gets it."""
    if not signature or signature == UNSIGNED:
        return ThinkingBlock(text)
    if signature.startswith(_FOREIGN):
        provider, _, provider_signature = signature.removeprefix(_FOREIGN).partition(":")
        return (
            ThinkingBlock(text, provider_signature, ProviderRaw(provider, {}))
            if provider_signature
            else ThinkingBlock(text)
        )
    return ThinkingBlock(text, signature)


def is_own_signature(signature: str) -> bool:
    """Whether a signature is from `client_signature`, not from a provider of the Messages API."""
    return signature == UNSIGNED or signature.startswith(_FOREIGN)


# --- Messages and blocks ---


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
        canonical = legal_name(name)
        if canonical != name:
            self.names[canonical] = name
            self.losses.changed(f"tool {name[:100]!r}", f"its name is {canonical!r} for the provider")
        return canonical

    def system(self, value: Json) -> tuple[str | None, list[Message]]:
        """The system text. If a part has additional fields, the parts are returned as messages."""
        if value is None or isinstance(value, str):
            return value or None, []
        parts = [self._text(part, path) for part, path in objects_at(value, "system")]
        if parts and parts[0].text.startswith(_BILLING):
            self.losses.content(
                "system block of billing", "it differs in each request, which defeats prompt caches"
            )
            del parts[0]
        if any(part.provider_raw is not None for part in parts):
            return None, [Message(Role.SYSTEM, (part,)) for part in parts]
        return "\n\n".join(part.text for part in parts if part.text.strip()) or None, []

    def messages(self, value: Json) -> list[Message]:
        if not list_at(value, "messages"):
            raise bad("messages", "at least one message is required")
        turns: list[tuple[str, list[ContentBlock]]] = []
        for message, path in objects_at(value, "messages"):
            role, blocks = self._role_and_blocks(message, path)
            # Anthropic treats consecutive messages of a role as one turn, and parallel calls may be in several
            # messages.
            if turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            else:
                turns.append((role, blocks))
        return [message for role, blocks in turns for message in self._turn(role, blocks)]

    def _role_and_blocks(self, fields: JsonObject, path: str) -> tuple[str, list[ContentBlock]]:
        role = required(fields, "role", path)
        if role not in ("user", "assistant", "system"):
            raise bad(f"{path}.role", "Input should be 'user' or 'assistant'")
        content = required(fields, "content", path)
        if isinstance(content, str):
            return role, [TextBlock(content)]
        blocks = [self._block(block, place, role) for block, place in objects_at(content, f"{path}.content")]
        if role == "assistant":
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
        kind = text_in(block, "type", path)
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
                text = text_in(block, "thinking", path)
                signature = text_at(block.get("signature") or "", f"{path}.signature")
                self.has_own_replies = self.has_own_replies or is_own_signature(signature)
                return read_thinking(text, signature)
            case "redacted_thinking", "assistant":
                return RedactedThinkingBlock(text_in(block, "data", path))
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
        rest = rest_of(block, "type", *known_fields)
        if not rest:
            return None
        self.losses.fields(str(block.get("type") or "text"), rest)
        return ProviderRaw(PROTOCOL, rest)

    def _text(self, block: JsonObject, path: str) -> TextBlock:
        return TextBlock(text_in(block, "text", path), self._raw(block, "text"))

    def _tool_use(self, block: JsonObject, path: str) -> ToolUseBlock:
        call_id, name, arguments = (
            text_in(block, "id", path),
            text_in(block, "name", path),
            object_in(block, "input", path),
        )
        canonical_id = canonical_tool_id(call_id)
        self.has_own_replies = self.has_own_replies or canonical_id != call_id
        return ToolUseBlock(
            canonical_id,
            self.name(name),
            arguments,
            provider_raw=self._raw(block, "id", "name", "input"),
        )

    def _tool_result(self, block: JsonObject, path: str) -> ToolResultBlock:
        call_id = text_in(block, "tool_use_id", path)
        value = block.get("content")
        content: str | tuple[ResultPart, ...] = ""
        if isinstance(value, str):
            content = value
        elif value is not None:
            content = tuple(self._part(part, place) for part, place in objects_at(value, f"{path}.content"))
        return ToolResultBlock(
            canonical_tool_id(call_id),
            content,
            bool_at(block.get("is_error") or False, f"{path}.is_error"),
            self._raw(block, "tool_use_id", "content", "is_error"),
        )

    def _part(self, block: JsonObject, path: str) -> ResultPart:
        kind = text_in(block, "type", path)
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
        source = object_in(block, "source", path)
        match source:
            case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
                raw, content = self._raw(block, "source"), _decoded(data, f"{path}.source.base64")
                return ImageBlock(data=content, media_type=media_type, provider_raw=raw)
            case {"type": "url", "url": str(url)}:
                return ImageBlock(url=url, provider_raw=self._raw(block, "source"))
            case _:
                return self._other_source(block, source, path, "image", ("base64", "url"))

    def _document(self, block: JsonObject, path: str) -> DocumentBlock | OpaqueBlock:
        source = object_in(block, "source", path)
        title = block.get("title")
        name = None if title is None else text_at(title, f"{path}.title")
        url: str | None = None
        content: bytes | None = None
        match source:
            case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
                content = _decoded(data, f"{path}.source.base64")
            case {"type": "text", "data": str(data)}:
                content, media_type = data.encode("utf-8", "replace"), "text/plain"
            case {"type": "url", "url": str(url)}:
                media_type = "application/pdf"
            case {"type": "content"} if (words := in_words(block)) and words.strip():
                self.losses.changed("document with source content", "other providers receive it as a text file")
                raw = ProviderRaw(PROTOCOL, {IN_WORDS: block})
                content = words.encode("utf-8", "replace")
                return DocumentBlock(data=content, media_type="text/plain", name=name, provider_raw=raw)
            case _:
                return self._other_source(block, source, path, "document", ("base64", "text", "url"))
        return DocumentBlock(url, content, media_type, name, self._raw(block, "source", "title"))

    def _other_source(
        self, block: JsonObject, source: JsonObject, path: str, kind: str, known_types: tuple[str, ...]
    ) -> OpaqueBlock:
        of_source = source.get("type")
        if "type" not in source or of_source is None or of_source in known_types:
            raise bad(f"{path}.source" if "type" in source else f"{path}.source.type", "Field required")
        self.losses.content(f"{kind} with source {of_source}")
        return OpaqueBlock(kind, ProviderRaw(PROTOCOL, block))


def _decoded(data: str, path: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except (Base64Error, ValueError) as error:
        raise bad(path, "Invalid base64 data") from error

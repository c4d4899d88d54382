"""A fitted history as messages of Chat Completions. Pure.

Unsupported content is dropped and reported as a loss. A tool's result is text only, so its images follow in a user
message. Messages of one role are joined for chat templates that require alternating roles.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias, cast

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

from ...contract import AdapterCapabilities
from ...requests.content import encode_json, join_text, media_bytes, sent_url
from ...requests.history import FAILED_SILENTLY, NO_OUTPUT
from ...requests.history_target import FittedHistory, Loss, block_type, encoded
from ...requests.settings import CUSTOM, INPUT, add_host_fields, free_text
from .quirks import Quirks

# --- Media of user messages ---

MediaBlock: TypeAlias = ImageBlock | AudioBlock | DocumentBlock

AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
TEXT_TYPES = ("text/plain", "text/markdown", "text/html", "text/csv", "application/json", "application/xml")
PDF = "application/pdf"


def accepts_audio(quirks: Quirks, model: str) -> bool:
    return bool(quirks.audio_models and re.search(quirks.audio_models, model))


def document_types(quirks: Quirks) -> tuple[str, ...]:
    return TEXT_TYPES if quirks.documents == "text" else (PDF, *TEXT_TYPES)


def refusal(block: MediaBlock, quirks: Quirks) -> str | None:
    """The reason why the server refuses a block in the form of this protocol; None if it accepts the block."""
    found = media_bytes(block)
    media_type = None if found is None else found[0]
    match block:
        case ImageBlock() if media_type is None and not quirks.image_urls:
            return "the server accepts images only as data, not by address"
        case AudioBlock() if media_type is None:
            return "the server accepts audio only as data, not by address"
        case AudioBlock() if media_type not in AUDIO_FORMATS:
            return f"the server does not accept {media_type or 'untyped'} audio, only WAV and MP3"
        case DocumentBlock() if media_type is None:
            return None if quirks.document_urls else "the server accepts documents only as data, not by address"
        case DocumentBlock() if media_type not in document_types(quirks):
            return f"the server does not accept {media_type or 'untyped'} documents"
        case _:
            return None


def media_part(block: MediaBlock, quirks: Quirks) -> JsonObject:
    match block:
        case ImageBlock():
            return _image(block)
        case AudioBlock():
            found = media_bytes(block)
            assert found is not None
            sound: JsonObject = {"data": b64encode(found[1]).decode(), "format": AUDIO_FORMATS[found[0]]}
            return {"type": "input_audio", "input_audio": sound}
        case DocumentBlock():
            return _document(block, quirks)


def _image(block: ImageBlock) -> JsonObject:
    image: JsonObject = {"url": sent_url(block)}
    if block.detail is not None:
        image["detail"] = block.detail
    return {"type": "image_url", "image_url": image}


def _document(block: DocumentBlock, quirks: Quirks) -> JsonObject:
    found = media_bytes(block)
    if found is not None and found[0] in TEXT_TYPES:
        text = found[1].decode("utf-8", "replace")
        return {"type": "text", "text": f"{block.name}:\n\n{text}" if block.name else text}
    url = sent_url(block)
    if quirks.documents == "document_url":
        part: JsonObject = {"type": "document_url", "document_url": url}
        if block.name:
            part["document_name"] = block.name
        return part
    return {"type": "file", "file": {"filename": block.name or "document.pdf", "file_data": url}}


_TEXT = {"type", "text"}
"""The fields of a text part."""

REASONING_FIELD = "reasoning_field"
"""The field of the reasoning in a thinking block's data, if it is not `reasoning_content`."""

_REASONING = ("reasoning_content", "reasoning", "reasoning_details")

_MISTRAL = re.compile(r"(?i)(?:mi|dev|mini|magi)stral")
"""Models that reject a user message directly after tool results, on any server
(NousResearch/hermes-agent#20154).
"""

_RESULTS_READ = "I have the results."
"""The assistant message between tool results and a user message, if the server needs one."""


def _plain(text: str, place: int) -> JsonObject:
    return {"role": "assistant" if place % 2 else "user", "content": text}


class MessageWriter:
    def __init__(
        self,
        history: FittedHistory,
        model: str,
        quirks: Quirks,
        capabilities: AdapterCapabilities,
        free_form: Collection[str],
    ) -> None:
        self.history = history
        self.model = model
        self.quirks = quirks
        self.capabilities = capabilities
        self.free_form = free_form
        self.losses: list[Loss] = []
        self.stands_in = quirks.replays == "tool_loop" or (
            bool(quirks.reasoning_models) and bool(re.search(quirks.reasoning_models, model))
        )
        beginning, done = encoded(history, "chat", _plain)
        self.messages = cast("list[JsonObject]", beginning)
        self.encoded = len(beginning)
        """The length of the part of `messages` that is JSON already."""
        self.messages += [_plain(text, place) for place, text in enumerate(history.plain[done:], done)]

    def write(self) -> list[JsonObject]:
        """The messages without the system text."""
        history = self.history.messages
        tool_turns = _tool_turns(history) if self.quirks.replays == "tool_loop" else frozenset()
        done = len(self.history.plain)
        before = history[done - 1].role if done else Role.ASSISTANT
        for position, message in enumerate(history[done:], done):
            role, text, follows = message.role, message.plain_text, before
            before = role
            if text is not None and (role is Role.ASSISTANT or (role is Role.USER and follows is Role.ASSISTANT)):
                self.messages.append({"role": "user" if role is Role.USER else "assistant", "content": text})
                continue
            match role:
                case Role.USER if self._only_text(message):
                    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
                    text = message.plain_text or "\n\n".join(texts)
                    self.messages.append({"role": "user", "content": text})
                case Role.USER:
                    self._say(self._parts(message.content))
                case Role.ASSISTANT:
                    wire = self._assistant(message, in_tool_turn=position in tool_turns)
                    if wire["content"] or len(wire) > len(("role", "content")):
                        # An empty message is left out; its content was reported as lost.
                        self.messages.append(wire)
                case Role.TOOL:
                    self._results(message)
                case _:
                    content = self._marked(message.content) or join_text(message.content)
                    self.messages.append({"role": message.role.value, "content": content})
        if not self.quirks.user_after_tool or _MISTRAL.search(self.model):
            separated = self.messages[: self.encoded]
            for wire in self.messages[self.encoded :]:
                if wire["role"] == "user" and len(separated) > self.encoded and separated[-1]["role"] == "tool":
                    separated.append({"role": "assistant", "content": _RESULTS_READ})
                separated.append(wire)
            self.messages = separated
        return self.messages

    def _only_text(self, message: Message) -> bool:
        """Whether a user message has only text, and does not follow a user message."""
        if self.messages and self.messages[-1]["role"] == "user":
            return False
        return message.plain_text is not None or all(
            type(block) is TextBlock and block.provider_raw is None for block in message.content
        )

    def _say(self, parts: list[JsonObject]) -> None:
        """Add a user message.

        If the last message is the user's, the parts are added to it, because chat templates require alternating
        roles.
        """
        if not parts:
            return
        before = self.messages[-1] if self.messages and self.messages[-1]["role"] == "user" else None
        if before is not None:
            content = before["content"]
            old: list[Json] = [_text_part(content)] if isinstance(content, str) else _as_list(content)
            before["content"] = [*old, *parts]
        elif all(part.keys() == _TEXT and part["type"] == "text" for part in parts):
            self.messages.append({"role": "user", "content": "\n\n".join(str(part["text"]) for part in parts)})
        else:
            self.messages.append({"role": "user", "content": list(parts)})

    def _parts(self, content: Iterable[ContentBlock], home: ToolResultBlock | None = None) -> list[JsonObject]:
        """The content of a user message, or of the tool's result `home`."""
        parts: list[JsonObject] = []
        for block in content:
            match block:
                case TextBlock():
                    parts.append(add_host_fields(_text_part(block.text), self.history.own(block.provider_raw)))
                case ImageBlock() if not self.capabilities.supports_images:
                    self._lose(block, "the model does not accept images", home)
                case ImageBlock() | AudioBlock() | DocumentBlock():
                    reason = refusal(block, self.quirks)
                    if reason is None:
                        data = self.history.own(block.provider_raw)
                        parts.append(add_host_fields(media_part(block, self.quirks), data))
                    else:
                        self._lose(block, reason, home)
                case OpaqueBlock():
                    parts.append(block.provider_raw.data)
                case _:
                    pass
        return parts

    def _assistant(self, message: Message, *, in_tool_turn: bool) -> JsonObject:
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        text = join_text(message.content)
        wire: JsonObject = {"role": "assistant", "content": self._marked(message.content) or text}
        if calls:
            wire["content"] = wire["content"] or (None if self.quirks.null_content else "")
            wire["tool_calls"] = [self._call(call) for call in calls]
        self._replay(wire, message, with_calls=bool(calls), in_tool_turn=in_tool_turn)
        return wire

    def _marked(self, content: Iterable[ContentBlock]) -> list[Json] | None:
        """Convert texts to parts, if the host set fields of at least one text."""
        texts = [block for block in content if isinstance(block, TextBlock)]
        if all(block.provider_raw is None for block in texts):
            return None
        parts = text_parts(texts, self.history)
        return [*parts] if any(len(part) > 2 for part in parts) else None

    def _call(self, call: ToolUseBlock) -> JsonObject:
        data = self.history.own(call.provider_raw)
        text = free_text(call)
        if text is not None and (data.get("type") == CUSTOM or call.name in self.free_form):
            custom: JsonObject = {"name": call.name, INPUT: text}
            return {"id": self.history.tool_ids[call.id], "type": CUSTOM, CUSTOM: custom}
        wire: JsonObject = {
            "id": self.history.tool_ids[call.id],
            "type": "function",
            # always an object: chat templates parse it
            "function": {"name": call.name, "arguments": encode_json(call.input).decode()},
        }
        if self.quirks.replays == "extra_content" and "extra_content" in data:
            wire["extra_content"] = data["extra_content"]
        return wire

    def _replay(self, wire: JsonObject, message: Message, *, with_calls: bool, in_tool_turn: bool) -> None:
        """Send back the reasoning that the server needs. The rest is reported as lost."""
        details: list[Json] = []
        for block in message.content:
            if isinstance(block, TextBlock | ToolUseBlock):
                continue
            raw = block.provider_raw if isinstance(block, ThinkingBlock | RedactedThinkingBlock) else None
            data = raw.data if raw is not None else {}
            match self.quirks.replays:
                case "tool_loop" if isinstance(block, ThinkingBlock) and in_tool_turn:
                    wire["reasoning_content"] = f"{wire.get('reasoning_content', '')}{block.text}"
                case "reasoning_details" | "as_sent" if "reasoning_details" in data:
                    details += _as_list(data["reasoning_details"])
                case "reasoning_details" if isinstance(block, ThinkingBlock) and with_calls:
                    # DeepSeek's models behind OpenRouter send no details and need the text of their reasoning back
                    wire["reasoning"] = f"{wire.get('reasoning', '')}{block.text}"
                case "as_sent" if isinstance(block, ThinkingBlock) and with_calls:
                    field = str(data.get(REASONING_FIELD, "reasoning_content"))
                    wire[field] = f"{wire.get(field, '')}{block.text}"
                case "extra_content" if "extra_content" in data:
                    wire["extra_content"] = data["extra_content"]
                case _ if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
                    self._lose(block, "this server does not accept this reasoning")
                case _ if isinstance(block, OpaqueBlock):
                    self._lose(block, "this protocol does not support it")
                case _:
                    pass
        if details:
            wire["reasoning_details"] = details
        if with_calls and self.stands_in and not any(wire.get(field) for field in _REASONING):
            field = "reasoning" if self.quirks.replays == "reasoning_details" else "reasoning_content"
            wire[field] = self.quirks.reasoning_stand_in

    def _results(self, message: Message) -> None:
        """Write one message for each result. Images follow in a user message, because results are text only."""
        images: list[JsonObject] = []
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                continue
            name = self.history.tool_names[block.tool_use_id]
            content = () if isinstance(block.content, str) else block.content
            pictures = self._parts([part for part in content if isinstance(part, ImageBlock)], block)
            text = block.text or ("The result is an image. It follows." if pictures else "")
            if not self.quirks.blank_results and not text.strip():
                text = FAILED_SILENTLY if block.is_error else NO_OUTPUT
            result: JsonObject = {
                "role": "tool",
                "tool_call_id": self.history.tool_ids[block.tool_use_id],
                "content": f"Error: {text}" if block.is_error else text,
            }
            if not isinstance(block.content, str) and not block.is_error:
                result["content"] = self._marked(block.content) or result["content"]
            if self.quirks.tool_result_name:
                result["name"] = name
            self.messages.append(add_host_fields(result, self.history.own(block.provider_raw)))
            if pictures:
                images += [_text_part(f"Result of {name}:"), *pictures]
        self._say(images)

    def _lose(self, block: ContentBlock, reason: str, home: ContentBlock | None = None) -> None:
        self.losses.append(self.history.loss(home or block, reason, kind=block_type(block)))


def _tool_turns(history: Sequence[Message]) -> frozenset[int]:
    """The indexes of all messages of user turns in which the model called a tool."""
    positions: set[int] = set()
    start, called = 0, False
    for position, message in enumerate(history):
        if message.role is Role.USER and not message.steers:
            start, called = position, False
        called = called or any(isinstance(block, ToolUseBlock) for block in message.content)
        if called:
            positions.update(range(start, position + 1))
            start = position + 1
    return frozenset(positions)


def text_parts(texts: Iterable[TextBlock], history: FittedHistory) -> list[JsonObject]:
    return [add_host_fields(_text_part(text.text), history.own(text.provider_raw)) for text in texts]


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


# --- Marks of the prompt cache ---

MOST = 4
"""The largest number of marks (cache breakpoints) in a request."""

_MARK = "cache_control"
_PLACE = b"\0"
"""A byte that JSON can't have. It marks the place of the cached beginning of the history."""
_INNER = ("content", "tool_calls", "function")
"""The fields whose values may also have marks."""


def encode_body(body: JsonObject) -> bytes:
    """The body as JSON, with at most `MOST` marks.

    The marks are searched in the bytes, because most requests have none. The cached beginning of the history has
    none, so it is inserted after the search.
    """
    messages = _as_list(body.get("messages"))
    beginning = msgspec.Raw()
    for place, message in enumerate(messages[:2]):  # the first may be the system text
        if isinstance(message, msgspec.Raw):
            beginning, messages[place] = message, cast("Json", msgspec.Raw(_PLACE))
    encoded = encode_json(body)
    if b'"cache_control"' in encoded:
        keep_latest(body)
        encoded = encode_json(body)
    if not beginning:
        return encoded
    before, _, after = encoded.partition(_PLACE)
    return b"".join((before, beginning, after))


def keep_latest(body: JsonObject) -> None:
    """Remove marks from a body until at most `MOST` are left. Marks on empty texts are removed first."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    marked = [place for place, message in enumerate(messages) if _count(message)]
    if not marked:
        return
    for place in marked:
        messages[place], _ = _without(messages[place], only_empty=True)
    tools = body.get("tools")
    surplus = (_MARK in body) + _count(tools) + sum(map(_count, messages)) - MOST
    first = [place for place in marked if not _is_system(messages[place])]
    last = [place for place in marked if _is_system(messages[place])]
    for place in (*first, *last):
        while surplus > 0 and _count(messages[place]):
            messages[place], removed = _without(messages[place], only_empty=False)
            surplus -= removed


def _is_system(message: Json) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _count(value: Json) -> int:
    if isinstance(value, list):
        return sum(map(_count, value))
    if not isinstance(value, dict):
        return 0
    marks = int(_MARK in value)
    for name in _INNER:
        inner = value.get(name)
        if inner is not None and not isinstance(inner, str):
            marks += _count(inner)
    return marks


def _without(value: Json, *, only_empty: bool) -> tuple[Json, int]:
    """Copy a value without the marks on empty texts, or without its first mark. Return also the number of removed
    marks.
    """
    if isinstance(value, list):
        entries, removed = list(value), 0
        for at, entry in enumerate(entries):
            if only_empty or not removed:
                entries[at], count = _without(entry, only_empty=only_empty)
                removed += count
        return entries, removed
    if not isinstance(value, dict):
        return value, 0
    text = value.get("text", value.get("content"))
    if _MARK in value and (not only_empty or (isinstance(text, str) and not text.strip())):
        return {name: inner for name, inner in value.items() if name != _MARK}, 1
    copy, removed = dict(value), 0
    for name in _INNER:
        if isinstance(copy.get(name), list | dict) and (only_empty or not removed):
            copy[name], count = _without(copy[name], only_empty=only_empty)
            removed += count
    return copy, removed

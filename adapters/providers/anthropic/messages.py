"""A fitted history as messages of the Messages API. Pure.

* `user` and `assistant` messages alternate. Tool results come first in a user message, and later text joins that
message.
* Reasoning is sent back unchanged or not at all. Anthropic requires its signature. Other vendors' servers sign
nothing and need the reasoning back. No message may end with reasoning.
* Opaque blocks are sent back unchanged, if allowed; see `OwnBlocks`. A host's fields in `provider_raw` are sent
with their block.
* Text may not be empty, a failed tool's result must be text, and media must be of a known kind.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple, assert_never

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

from ...requests.content import is_remote, media_bytes, media_type_of, repair_text
from ...requests.history import FAILED_SILENTLY, NO_OUTPUT
from ...requests.history_target import FittedHistory, Loss, encoded, left_out
from .response import CONTAINER, FALLBACK

# --- Opaque blocks in requests ---

_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")


class OwnBlocks(NamedTuple):
    """The blocks of a history that must not be sent back to their provider."""

    declined: Mapping[int, ContentBlock] = {}
    """The blocks, by identity, that a model wrote before it declined."""
    declined_calls: Set[str] = frozenset()
    unpaired: Set[int] = frozenset()
    """The provider's calls without a result, and results without a call, by identity."""
    calls: Set[str] = frozenset()
    """The ids of the provider's calls that are sent back."""


_NONE = OwnBlocks()


def own_blocks(history: FittedHistory) -> OwnBlocks:
    unusual = [message for message in history.messages[len(history.plain) :] if message.plain_text is None]
    opaque = [block for message in unusual for block in message.content if isinstance(block, OpaqueBlock)]
    if not opaque:
        return _NONE
    declined, unpaired = _declined(history.messages), _unpaired_server_tools(history.messages)
    sent = [block for block in opaque if id(block) not in unpaired and id(block) not in declined]
    return OwnBlocks(
        declined,
        {block.id for block in declined.values() if isinstance(block, ToolUseBlock)},
        unpaired,
        {call_id for block in sent if isinstance(call_id := block.provider_raw.data.get("id"), str)},
    )


def open_container(history: FittedHistory) -> str | None:
    """The container with the waiting tools of the last turn. The request must name it.

    None after a user message, because no tool waits, and an expired container would be rejected.
    """
    for message in reversed(history.messages):
        for block in reversed(message.content):
            if isinstance(block, OpaqueBlock) and block.kind == CONTAINER:
                container_id = block.provider_raw.data.get("id")
                if isinstance(container_id, str):
                    return container_id
        if message.role is Role.USER:
            break
    return None


def _declined(messages: Iterable[Message]) -> dict[int, ContentBlock]:
    """The blocks, by identity, that a model wrote before it declined, and that must not be sent back."""
    found: dict[int, ContentBlock] = {}
    for message in messages:
        content = message.content if message.role is Role.ASSISTANT else ()
        places = [
            at for at, block in enumerate(content) if isinstance(block, OpaqueBlock) and block.kind == FALLBACK
        ]
        before = content[: places[-1]] if places else ()
        data = [block.provider_raw.data for block in before if isinstance(block, OpaqueBlock)]
        answered = [fields.get("tool_use_id") for fields in data]
        for block in before:
            match block:
                case ThinkingBlock() | RedactedThinkingBlock() | ToolUseBlock():
                    found[id(block)] = block
                case OpaqueBlock(kind=kind, provider_raw=raw) if kind == "connector_text" or (
                    kind in _SERVER_CALLS and raw.data.get("id") not in answered
                ):
                    found[id(block)] = block
                case _:
                    pass
    return found


def _unpaired_server_tools(messages: Iterable[Message]) -> frozenset[int]:
    """Opaque tool calls without a result and results without a call, by identity.

    A call in the last turn is not in the result, because its result may still follow: the reply was paused, or one
    of the host's tools runs first.
    """
    waiting: dict[str, OpaqueBlock] = {}
    unpaired: set[int] = set()
    for message in messages:
        if message.role is Role.USER:
            unpaired.update(id(block) for block in waiting.values())
            waiting.clear()
        for block in message.content:
            if isinstance(block, OpaqueBlock):
                match block.provider_raw.data:
                    case {"type": str(kind), "tool_use_id": str(call_id)} if kind.endswith("_result"):
                        if waiting.pop(call_id, None) is None:
                            unpaired.add(id(block))
                    case {"type": "server_tool_use" | "mcp_tool_use", "id": str(call_id)}:
                        waiting[call_id] = block
                    case _:
                        pass
    return frozenset(unpaired)


def sent_citation(data: JsonObject) -> JsonObject:
    return {name: value for name, value in data.items() if name != "file_id"}


IN_WORDS = "in_words"
"""The field of `provider_raw` with the provider's original block, for a block that was replaced by text."""


def in_words(block: JsonObject) -> str | None:
    """The text of a search result, or of a document that has content blocks; None for any other block. Other
    providers receive this text.
    """
    match block:
        case {"type": "search_result", "title": str(title), "source": str(source), "content": list(content)}:
            texts = _texts(content)
            return None if texts is None else "\n".join((title, source, "", texts))
        case {"type": "document", "source": {"type": "content", "content": str(text)}}:
            return text
        case {"type": "document", "source": {"type": "content", "content": list(content)}}:
            return _texts(content)
        case _:
            return None


def _texts(content: list[Json]) -> str | None:
    """The texts of a list of blocks, joined; None if it has other blocks."""
    texts = [block.get("text") if isinstance(block, dict) else None for block in content]
    found = [text for text in texts if isinstance(text, str)]
    return "\n".join(found) if len(found) == len(texts) else None


def without_nulls(data: JsonObject) -> JsonObject:
    """Convert a reply's block for a request. A request may omit optional fields, but not set them to null."""
    return {name: _inner(name, value) for name, value in data.items() if value is not None or name == "content"}


def _inner(name: str, value: Json) -> Json:
    match name, value:
        case "content", dict():
            return without_nulls(value)
        case "content", list():
            return [_with_citations(block) for block in value]
        case _:
            return value


def _with_citations(block: Json) -> Json:
    citations = block.get("citations") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(citations, list):
        return block
    sent = [sent_citation(one) if isinstance(one, dict) else one for one in citations]
    return {**block, "citations": sent}


IMAGE_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
PDF = "application/pdf"
TEXT_MEDIA_TYPES = (
    "text/plain",
    "text/markdown",
    "text/csv",
    "text/html",
    "text/xml",
    "application/json",
    "application/xml",
    "application/yaml",
)
"""Media types of documents that are sent as plain text, because the API has no other type for them."""

_SPEAKERS = ("user", "assistant")
_MARK = "cache_control"


_REASONING = ("thinking", "redacted_thinking")
_MAX_TITLE = 500  # characters


class ServerTraits(NamedTuple):
    """The differences between servers of the Messages API. The defaults are Anthropic's."""

    errors_in_words: bool = False
    """Whether a failed tool's result is marked in its text, for servers that ignore `is_error`."""
    unsigned_thinking: bool = False
    """Whether unsigned thinking is sent back. Anthropic refuses it."""
    thinking_stand_in: str | None = None
    """The text that replaces missing thinking before calls. None if there is none.

    DeepSeek and Moonshot refuse calls without thinking (NousResearch/hermes-agent#16149 and #14018).
    """
    blank_results: bool = True
    """Whether a tool's result may have no visible text. Otherwise a short text is sent."""


ANTHROPIC = ServerTraits()


def write_system(history: FittedHistory) -> str | list[Json] | None:
    """The system text: one string, or parts if the host set a breakpoint in it."""
    if not history.system_parts:
        return history.system
    writer = MessageWriter(history, ANTHROPIC)
    return [writer.text(part) for part in history.system_parts]


def _plain(text: str, place: int) -> JsonObject:
    return {"role": "assistant" if place % 2 else "user", "content": [{"type": "text", "text": text}]}


class MessageWriter:
    def __init__(self, history: FittedHistory, habits: ServerTraits) -> None:
        self.history = history
        self.habits = habits
        self.error_words = "Error: " if habits.errors_in_words else ""
        self.joined = 0
        """The number of messages in the first item, if it is `Raw`."""
        self.losses: list[Loss] = []
        self.own_blocks = own_blocks(history)
        # the toolset of each call, for the call's result, by Callboard's id of the call
        self.toolsets: dict[str, Json] = {}

    def write(self) -> list[Json]:
        history, plain = self.history, self.history.plain
        written, done = encoded(history, "messages", _plain)
        self.joined = done
        last: list[Json] = []
        for place, plain_text in enumerate(plain[done:], done):
            last = [{"type": "text", "text": plain_text}]
            written.append({"role": _SPEAKERS[place % 2], "content": last})
        last_role = _SPEAKERS[len(plain) % 2 - 1]
        for message in history.messages[len(plain) :]:
            role = "assistant" if message.role is Role.ASSISTANT else "user"
            text = message.plain_text
            blocks: list[Json] = self._content(message) if text is None else [{"type": "text", "text": text}]
            if not blocks:
                continue
            if written and last_role == role:
                last.extend(blocks)
            else:
                written.append({"role": role, "content": blocks})
                last, last_role = blocks, role
        if not written:
            raise InvalidRequestError(f"{history.adapter}: the request has no message to send")
        if last_role == "assistant":
            _trim_end(last)
        return written

    def _content(self, message: Message) -> list[Json]:
        written = [(block, wire_block) for block in message.content for wire_block in self._block(block)]
        # the reply was stopped during its thinking
        while written and written[-1][1].get("type") in _REASONING:
            self._lose(written.pop()[0], "its result was never sent")
        if not written and message.role is Role.USER:
            return [{"type": "text", "text": text.text} for text in left_out(message.content)]
        blocks: list[Json] = [wire_block for _, wire_block in written]
        kinds = [wire_block.get("type") for _, wire_block in written]
        thinks = any(kind in kinds for kind in _REASONING)
        if self.habits.thinking_stand_in is not None and "tool_use" in kinds and not thinks:
            blocks.insert(0, {"type": "thinking", "thinking": self.habits.thinking_stand_in, "signature": ""})
        return blocks

    def _block(self, block: ContentBlock) -> Iterator[JsonObject]:
        match block:
            case _ if id(block) in self.own_blocks.declined:
                self._lose(block, "its model declined, and another model continued")
            case TextBlock():
                yield self.text(block)
            case ImageBlock():
                yield from self._image(block, block)
            case DocumentBlock():
                yield from self._document(block, block)
            case AudioBlock():
                self._lose(block, "this protocol does not accept audio")
            case ToolUseBlock():
                yield self._tool_use(block)
            case ToolResultBlock(tool_use_id=call_id) if call_id in self.own_blocks.declined_calls:
                pass  # the result's call is not sent
            case ToolResultBlock():
                yield self._tool_result(block)
            case ThinkingBlock(signature=None) | ThinkingBlock(signature="") if self.habits.unsigned_thinking:
                text = block.text or self.habits.thinking_stand_in
                if text:
                    yield {"type": "thinking", "thinking": text, "signature": ""}
            case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                self._lose(block, "it has no signature")
            case ThinkingBlock():
                yield {"type": "thinking", "thinking": block.text, "signature": block.signature}
            case RedactedThinkingBlock():
                yield {"type": "redacted_thinking", "data": block.data}
            case OpaqueBlock() if block.kind == CONTAINER:
                pass
            case OpaqueBlock() if id(block) in self.own_blocks.unpaired:
                reason = "a provider's tool call and its result can only be sent together"
                self._lose(block, reason, kind=block.kind)
            case OpaqueBlock():
                yield without_nulls(block.provider_raw.data)
            case _:
                assert_never(block)

    def text(self, block: TextBlock) -> JsonObject:
        shown = self._shown(block.provider_raw, block.text)
        if shown is not None:
            return shown
        written: JsonObject = {"type": "text", "text": block.text}
        citations = self.history.own(block.provider_raw).get("citations")
        if isinstance(citations, list) and citations:
            written["citations"] = [sent_citation(one) for one in citations if isinstance(one, dict)]
        return {**written, **self._fields(block.provider_raw)}

    def _shown(self, raw: ProviderRaw | None, text: str) -> JsonObject | None:
        """The provider's original block of a text; None if there is none, or if the text was changed."""
        shown = self.history.own(raw).get(IN_WORDS)
        return shown if isinstance(shown, dict) and in_words(shown) == text else None

    def _fields(self, raw: ProviderRaw | None, *names: str) -> JsonObject:
        data = self.history.own(raw)
        return {name: data[name] for name in (_MARK, *names) if data.get(name) is not None} if data else {}

    def _tool_use(self, block: ToolUseBlock) -> JsonObject:
        wire_block: JsonObject = {
            "type": "tool_use",
            "id": self.history.tool_ids[block.id],
            "name": block.name,
            "input": block.input,
        }
        fields = self._fields(block.provider_raw, "caller", "toolset_name")
        if not self._is_sent(fields.get("caller")):
            fields.pop("caller", None)
        if "toolset_name" in fields:
            self.toolsets[block.id] = fields["toolset_name"]
        return {**wire_block, **fields}

    def _is_sent(self, caller: Json) -> bool:
        """Whether a call may be sent: it has no caller, or its caller is also sent."""
        if not isinstance(caller, dict):
            return False
        if "tool_id" not in caller:
            return True
        tool_id = caller["tool_id"]
        return isinstance(tool_id, str) and tool_id in self.own_blocks.calls

    def _tool_result(self, block: ToolResultBlock) -> JsonObject:
        result: JsonObject = {"type": "tool_result", "tool_use_id": self.history.tool_ids[block.tool_use_id]}
        content: Json = self._result_content(block)
        if not content and (block.is_error or not self.habits.blank_results):
            content = FAILED_SILENTLY if block.is_error else NO_OUTPUT
        if block.is_error and self.error_words:
            if isinstance(content, str):
                content = self.error_words + content
            elif isinstance(content, list):
                content = [{"type": "text", "text": self.error_words}, *content]
        if content:
            result["content"] = content
        if block.is_error:
            result["is_error"] = True
        if block.tool_use_id in self.toolsets:
            result["toolset_name"] = self.toolsets[block.tool_use_id]
        return {**result, **self._fields(block.provider_raw, "toolset_name")}

    def _result_content(self, block: ToolResultBlock) -> str | list[Json]:
        if isinstance(block.content, str):
            return block.content if block.content.strip() else ""
        parts: list[Json] = []
        for part in block.content:
            match part:
                case TextBlock():
                    if part.text.strip():
                        parts.append(self.text(part))
                case ImageBlock() | DocumentBlock() if block.is_error:
                    kind = "image" if isinstance(part, ImageBlock) else "document"
                    self._lose(block, "the result of a failed tool accepts only text", kind=kind)
                case ImageBlock():
                    parts += self._image(part, block)
                case DocumentBlock():
                    parts += self._document(part, block)
                case OpaqueBlock() if block.is_error:
                    self._lose(block, "the result of a failed tool accepts only text", kind=part.kind)
                case OpaqueBlock():
                    parts.append(without_nulls(part.provider_raw.data))
                case _:
                    assert_never(part)
        return parts

    def _image(self, image: ImageBlock, home: ContentBlock) -> Iterator[JsonObject]:
        fields = self._fields(image.provider_raw, "transformations")
        if is_remote(image.url):
            yield {"type": "image", "source": {"type": "url", "url": image.url}, **fields}
            return
        found = media_bytes(image)
        if found is None:
            self._lose(home, "its url is neither http(s) nor a data url", kind="image")
            return
        data = found[1]
        media_type = media_type_of(image)
        encoded = b64encode(data).decode()
        yield {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": encoded}, **fields}

    def _document(self, document: DocumentBlock, home: ContentBlock) -> Iterator[JsonObject]:
        shown = self._shown(document.provider_raw, (document.data or b"").decode("utf-8", "replace"))
        if shown is not None:
            yield shown
            return
        source = _document_source(document)
        if isinstance(source, str):
            self._lose(home, source, kind="document")
            return
        wire_block: JsonObject = {"type": "document", "source": source}
        title = repair_text(document.name or "").strip()[:_MAX_TITLE]
        if title:
            wire_block["title"] = title
        yield {**wire_block, **self._fields(document.provider_raw, "citations", "context", "title")}

    def _lose(self, block: ContentBlock, reason: str, *, kind: str | None = None) -> None:
        self.losses.append(self.history.loss(block, reason, kind=kind))


def _document_source(document: DocumentBlock) -> JsonObject | str:
    """The location of the document, or the reason why it can't be sent."""
    if is_remote(document.url):
        if document.media_type not in (None, PDF):
            return "only PDF files are accepted by address"
        return {"type": "url", "url": document.url}
    found = media_bytes(document)
    if found is None:
        return "its url is neither http(s) nor a data url"
    media_type, data = found
    if media_type == PDF:
        return {"type": "base64", "media_type": PDF, "data": b64encode(data).decode()}
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "its text is not UTF-8"
    return {"type": "text", "media_type": "text/plain", "data": text} if text.strip() else "it is empty"


def _trim_end(content: list[Json]) -> None:
    """Remove white space from the end of a reply to continue, because the API rejects it."""
    last = content[-1]
    if isinstance(last, dict) and last.get("type") == "text":
        last["text"] = str(last["text"]).rstrip()

"""Content on the wire: texts and JSON, media, and histories without reasoning or tool calls.

Reasoning is mostly in separate blocks. Gemini also signs texts and calls: the signature is in the block's provider
data. An opaque block may consist of only a signature.
"""

from __future__ import annotations

import binascii
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import is_
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

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
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

B = TypeVar("B", bound=ContentBlock)

_ESCAPE = (
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of a pair
    rb"|.)"  # any other escape, matched so that an escaped backslash does not start a pair
)


def repair_json(text: bytes) -> bytes:
    """Remove halves of surrogate pairs from the escapes of JSON text. Text without them is returned unchanged."""
    if b"\\u" not in text:
        return text
    repaired = re.sub(_ESCAPE, lambda found: b"\\ufffd" if found[1] else found[0], text, flags=re.DOTALL)
    return text if repaired == text else repaired


_NO_NUMBER = rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?Infinity|NaN)'
"""A string, which is not changed, or a number that JSON doesn't have."""


class RepairedBody(NamedTuple):
    """A body after repairs. It may still be invalid JSON."""

    text: bytes
    replaced: tuple[str, ...]
    """The kinds of text that were replaced, in words."""


def repair_body(text: bytes) -> RepairedBody | None:
    """Replace all text that is invalid in JSON. Return None if there is none."""
    utf8 = text.decode("utf-8", "replace").encode()
    numbers = re.sub(_NO_NUMBER, lambda found: b"null" if found[1] else found[0], utf8, flags=re.DOTALL)
    whole = repair_json(numbers)
    steps = (
        ("invalid UTF-8", text, utf8),
        ("NaN or Infinity", utf8, numbers),
        ("half a surrogate pair", numbers, whole),
    )
    replaced = tuple(what for what, before, after in steps if before != after)
    return RepairedBody(whole, replaced) if replaced else None


def repair_text(text: str) -> str:
    """Make a text encodable as UTF-8: join surrogate pairs, and replace halves. A valid text is returned
    unchanged.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def repair_object(value: JsonObject) -> JsonObject:
    """Repair all texts in a JSON object. A valid object is returned unchanged."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return {repair_text(name): repair_json_value(inner) for name, inner in value.items()}
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # `encode_json` raises the error later
    return value


def repair_json_value(value: Json) -> Json:
    """Repair all texts in a JSON value."""
    match value:
        case str():
            return repair_text(value)
        case list():
            return [repair_json_value(item) for item in value]
        case dict():
            return {repair_text(name): repair_json_value(item) for name, item in value.items()}
        case _:
            return value


def encode_json(value: Json) -> bytes:
    """Encode a value as JSON. Text that UTF-8 can't encode is repaired."""
    try:
        try:
            return msgspec.json.encode(value)
        except UnicodeEncodeError:
            return msgspec.json.encode(repair_json_value(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request is not JSON: {error}") from error


def as_text(value: Json) -> str:
    """Return text unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def join_text(content: Iterable[ContentBlock]) -> str:
    """Join all text blocks. A blank line separates them, unless one ends or starts with white space."""
    joined = ""
    for block in content:
        if isinstance(block, TextBlock):
            goes_on = not joined or joined[-1].isspace() or block.text[:1].isspace()
            joined += block.text if goes_on else f"\n\n{block.text}"
    return joined


def current_turn(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the last reply. The model must support all their content; earlier messages are fitted to
    the model.
    """
    begin = len(messages)
    while begin and messages[begin - 1].role is not Role.ASSISTANT:
        begin -= 1
    return messages[begin:]


# --- Media ---

WEB = ("https", "http")
"""The schemes of addresses that most providers can fetch."""

_FILMS = {
    "mp4": "video/mp4", "m4v": "video/mp4", "mov": "video/quicktime", "webm": "video/webm", "mpeg": "video/mpeg",
    "mpg": "video/mpeg", "avi": "video/avi", "wmv": "video/wmv", "flv": "video/x-flv", "3gp": "video/3gpp",
    "mkv": "video/x-matroska",
}  # fmt: skip
"""The media types of video files, by file name ending."""

_YOUTUBE = ("youtube.com", "youtu.be")

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""The first bytes of image files. Anthropic rejects an image whose bytes and label differ."""

_STANDARD = bytes.maketrans(b"-_", b"+/")
"""The translation from the URL alphabet of base64 to the standard one.

Without this translation, decoding would silently drop the two characters.
"""


def is_remote(url: str | None, schemes: Iterable[str] = WEB) -> bool:
    return url is not None and url.lower().startswith(tuple(f"{scheme}://" for scheme in schemes))


def plain_type(media_type: str) -> str:
    """A media type in lower case without parameters, for comparisons."""
    bare = media_type.partition(";")[0].strip().lower()
    return "image/jpeg" if bare == "image/jpg" else bare


def image_type(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, GIF or WebP from its first 12 bytes; None for other bytes."""
    if data[:4] == b"RIFF":
        return "image/webp" if data[8:12] == b"WEBP" else None
    return next((name for magic, name in _IMAGES.items() if data.startswith(magic)), None)


def _true_type(block: ImageBlock | AudioBlock | DocumentBlock, label: str, data: bytes) -> str:
    """The media type to send. For an image, the bytes decide. Audio keeps its parameters, which describe the
    samples.
    """
    if isinstance(block, AudioBlock):
        return label
    return (image_type(data) if isinstance(block, ImageBlock) else None) or plain_type(label)


def media_bytes(block: ImageBlock | AudioBlock | DocumentBlock) -> tuple[str, bytes] | None:
    """A block's media type (empty if unknown) and bytes, from `data` or a data URL; None without bytes."""
    if block.data is not None:
        return _true_type(block, block.media_type or "", block.data), block.data
    found = read_data_url(block.url or "")
    if found is None:
        return None
    return _true_type(block, found[0] or block.media_type or "", found[1]), found[1]


def is_empty(block: ImageBlock | AudioBlock | DocumentBlock) -> bool:
    if block.data is not None:
        return not block.data
    url = block.url or ""
    return url[:5].lower() == "data:" and url.endswith(",")


def film_type(block: ImageBlock | AudioBlock | DocumentBlock) -> str | None:
    """The media type of a video, for a document without a type whose URL ends like a video file; None for any
    other block.

    A model without video support must not get a video as a document of unknown type.
    """
    if block.media_type is not None or block.url is None or not isinstance(block, DocumentBlock):
        return None
    try:
        address = urlsplit(block.url)
    except ValueError:
        return None
    if (address.hostname or "").removeprefix("www.").removeprefix("m.") in _YOUTUBE:
        return "video/mp4"
    _, dot, ending = address.path.rpartition(".")
    return _FILMS.get(ending.lower()) if dot else None


def media_type_of(block: ImageBlock | AudioBlock | DocumentBlock, schemes: Iterable[str] = WEB) -> str | None:
    """A block's media type; empty if unknown. None for a URL with one of the schemes, unless it is the URL of a
    video.
    """
    if isinstance(block, ImageBlock) and (true := image_type(_first_bytes(block))):
        return true
    media_type = block.media_type or film_type(block)
    if media_type is not None and not isinstance(block, AudioBlock):
        media_type = plain_type(media_type)
    if media_type is None and block.url is not None and not is_remote(block.url, schemes):
        head = block.url.partition(",")[0].partition(";")[0].lower()
        media_type = head.removeprefix("data:") if head.startswith("data:") else ""
    return "image/jpeg" if media_type == "image/jpg" else media_type


def _first_bytes(block: ImageBlock) -> bytes:
    """The first 12 bytes of an image, which identify its type. Empty for an image with a URL."""
    if block.data is not None:
        return block.data[:12]
    head, comma, body = (block.url or "")[:200].partition(",")
    found = read_data_url(f"{head},{body[:16]}") if comma else None
    return found[1] if found is not None else b""


def read_data_url(url: str) -> tuple[str, bytes] | None:
    """The media type and bytes of a data URL, in either base64 alphabet; None for any other URL."""
    head, comma, body = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    media_type, *parameters = head[len("data:") :].lower().split(";")
    data = unquote_to_bytes(body)
    if "base64" not in parameters:
        return media_type, data
    try:
        return media_type, b64decode(data.translate(_STANDARD), validate=False)
    except binascii.Error:
        return None


def write_data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def sent_url(block: ImageBlock | DocumentBlock) -> str | None:
    """The address of a block: a data URL if its bytes are known."""
    found = media_bytes(block)
    return block.url if found is None else write_data_url(*found)


def image_of_base64(data: Json, media_type: Json = None) -> ImageBlock | None:
    """Decode an image from base64; None if it is invalid or of an unknown type."""
    if not isinstance(data, str) or not data:
        return None
    try:
        return _image_of_type(b64decode(data, validate=True), media_type)
    except ValueError:  # invalid base64 or not ASCII
        return None


def image_at(url: Json) -> ImageBlock | None:
    """The image at a web address or data URL; None for any other address."""
    if not isinstance(url, str):
        return None
    if is_remote(url):
        return ImageBlock(url=url)
    found = read_data_url(url)
    return _image_of_type(found[1], found[0]) if found is not None and found[1] else None


def _image_of_type(data: bytes, media_type: Json) -> ImageBlock | None:
    named = media_type if isinstance(media_type, str) and media_type.startswith("image/") else None
    try:
        # Detect the type, because some servers label every image as the requested type.
        return ImageBlock(data=data)
    except ValueError:
        return None if named is None else ImageBlock(data=data, media_type=named)


# --- Image sizes ---


def image_pixels(data: bytes) -> int | None:
    """Width times height of a PNG, GIF, WebP or JPEG; None if unknown."""
    size = image_size(data)
    return size[0] * size[1] if size is not None else None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, GIF, WebP or JPEG; None if unknown."""
    try:
        return _size(data)
    except (struct.error, IndexError):
        return None


def _size(data: bytes) -> tuple[int, int] | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if data.startswith(b"GIF8"):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case _:
            return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame's header, of any coding
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


# --- Reasoning ---

_SIGNATURES = ("signatures", "thoughtSignature")
_EXTRA: Json = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""Extra data that Google's Chat Completions endpoint accepts in place of a call's signature."""


def without_reasoning(message: Message, provider: str) -> Message:
    """The message without a provider's reasoning and signatures; the same object if it has none. The result may be
    empty.

    Reasoning of an unknown provider is also removed.
    """
    content = [bare for block in message.content if (bare := _bare(block, provider)) is not None]
    if len(content) == len(message.content) and all(map(is_, content, message.content)):
        return message
    return msgspec.structs.replace(message, content=tuple(content))


def bared_blocks(before: Message, after: Message) -> int:
    """The number of blocks that `without_reasoning` changed or removed."""
    block_ids = {id(block) for block in after.content}
    return sum(id(block) not in block_ids for block in before.content)


_ANTHROPICS = "anthropic-claude-v1"
"""OpenRouter's name for the form of Anthropic's reasoning."""


def is_unowned(raw: ProviderRaw | None) -> bool:
    """Whether reasoning has no stated provider.

    A gateway that reports only Anthropic's form of reasoning states no provider.
    """
    if raw is None:
        return True
    match raw.data.get("reasoning_details"):
        case [{"format": str(form)}]:
            return form == _ANTHROPICS
        case _:
            return False


def _bare(block: ContentBlock, provider: str) -> ContentBlock | None:
    """A block without its signature. None if nothing remains."""
    match block:
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if is_unowned(raw) or (raw is not None and raw.provider == provider) else block
        case TextBlock(provider_raw=ProviderRaw() as raw) | ToolUseBlock(provider_raw=ProviderRaw() as raw):
            data = _unsigned(raw, provider)
            if data is raw.data:
                return block
            return msgspec.structs.replace(
                block, provider_raw=msgspec.structs.replace(raw, data=data) if data else None
            )
        case OpaqueBlock(provider_raw=raw):
            data = _unsigned(raw, provider)
            if data is raw.data:
                return block
            if not data.get("text", True):
                return None
            return msgspec.structs.replace(block, provider_raw=msgspec.structs.replace(raw, data=data))
        case _:
            return block


def _unsigned(raw: ProviderRaw, provider: str) -> JsonObject:
    """The provider's data without signatures; the same object if it has none or is another provider's."""
    data = raw.data
    if raw.provider != provider:
        return data
    if any(name in data for name in _SIGNATURES):
        data = {name: value for name, value in data.items() if name not in _SIGNATURES}
    if _is_signed(data.get("extra_content")):
        data = {**data, "extra_content": _EXTRA}
    return data


def _is_signed(extra: Json) -> bool:
    google = extra.get("google") if isinstance(extra, dict) else None
    return isinstance(google, dict) and "thought_signature" in google and extra != _EXTRA


# --- The provider of opaque data ---


def of_provider(messages: tuple[Message, ...], known_as: str, name: str) -> tuple[Message, ...]:
    """Relabel opaque data in messages: from the protocol's name `known_as` to the provider's own name."""
    if known_as == name:
        return messages
    return tuple(
        msgspec.structs.replace(message, content=content_of_provider(message.content, known_as, name))
        for message in messages
    )


def content_of_provider(content: Iterable[B], known_as: str, name: str) -> tuple[B, ...]:
    """Like `of_provider`, for blocks."""
    return tuple(_of_provider(block, known_as, name) for block in content)


def _of_provider(block: B, known_as: str, name: str) -> B:
    changed: dict[str, Any] = {}
    raw = getattr(block, "provider_raw", None)
    if raw is not None and raw.provider == known_as:
        changed["provider_raw"] = msgspec.structs.replace(raw, provider=name)
    if isinstance(block, ToolResultBlock) and not isinstance(block.content, str):
        changed["content"] = content_of_provider(block.content, known_as, name)
    return msgspec.structs.replace(block, **changed) if changed else block


# --- Tool calls and results as text ---


def tools_as_text(
    messages: Iterable[Message], calls: Mapping[str, ToolUseBlock], wire_ids: Collection[str]
) -> Iterator[Message]:
    """Yield the messages, with these calls and their results converted to text."""
    for message in messages:
        match message.role:
            case Role.ASSISTANT:
                content = tuple(block for block in message.content if not _is_text(block, calls, wire_ids))
                if content != message.content:  # also drop the reasoning, which is bound to the blocks after it
                    content = tuple(
                        block for block in content if not isinstance(block, ThinkingBlock | RedactedThinkingBlock)
                    )
            case Role.TOOL:
                results = [block for block in message.content if isinstance(block, ToolResultBlock)]
                content = tuple(block for block in results if block.tool_use_id not in calls)
                yield from (
                    _as_text(calls[block.tool_use_id], block) for block in results if block.tool_use_id in calls
                )
            case _:
                content = message.content
        if content == message.content:
            yield message
        elif content:
            yield msgspec.structs.replace(message, content=content)


def _is_text(block: ContentBlock, calls: Mapping[str, ToolUseBlock], wire_ids: Collection[str]) -> bool:
    match block:
        case ToolUseBlock():
            return block.id in calls
        case OpaqueBlock():
            return block.provider_raw.data.get("call_id") in wire_ids
        case _:
            return False


def _as_text(call: ToolUseBlock, result: ToolResultBlock) -> Message:
    arguments = msgspec.json.encode(call.input, order="deterministic").decode()
    how = "failed" if result.is_error else "answered"
    introduction = TextBlock(f"The tool {call.name} was called with {arguments} and {how}:")
    if isinstance(result.content, str):
        return Message.user((introduction, TextBlock(result.content)))
    content: tuple[ResultPart, ...] = result.content
    return Message.user((introduction, *content))

"""Media on the wire: bytes with their type, addresses, and image sizes."""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes, urlsplit

from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock

WEB = ("https", "http")
"""The schemes of addresses that most providers can fetch."""

_FILMS = {
    "mp4": "video/mp4", "m4v": "video/mp4", "mov": "video/quicktime", "webm": "video/webm", "mpeg": "video/mpeg",
    "mpg": "video/mpeg", "avi": "video/avi", "wmv": "video/wmv", "flv": "video/x-flv", "3gp": "video/3gpp",
    "mkv": "video/x-matroska",
}  # fmt: skip
"""The media types of films, by the endings of their names."""

_YOUTUBE = ("youtube.com", "youtu.be")

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""The first bytes of image files. Anthropic answers 400 if an image's type differs from its label."""

_STANDARD = bytes.maketrans(b"-_", b"+/")
"""From the URL alphabet of base64 to the standard one. Decoding would silently drop these two characters."""


def is_remote(url: str | None, schemes: Iterable[str] = WEB) -> bool:
    return url is not None and url.lower().startswith(tuple(f"{scheme}://" for scheme in schemes))


def plain_type(media_type: str) -> str:
    """A media type in lower case without parameters, as servers compare it."""
    bare = media_type.partition(";")[0].strip().lower()
    return "image/jpeg" if bare == "image/jpg" else bare


def image_type(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, GIF or WebP from its first 12 bytes; None for other bytes."""
    if data[:4] == b"RIFF":
        return "image/webp" if data[8:12] == b"WEBP" else None
    return next((name for magic, name in _IMAGES.items() if data.startswith(magic)), None)


def _true_type(block: ImageBlock | AudioBlock | DocumentBlock, label: str, data: bytes) -> str:
    """The media type to send. An image's bytes decide. Audio keeps its parameters, which describe samples."""
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
    """The media type of an untyped document with the address of a film; None for any other block.

    A model without film support must not get one as a document of unknown type.
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
    """A block's media type. Empty if it has none. None if it is an address of one of the schemes, unless it is a
    film's.
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
    """The first 12 bytes of an image, which identify its type. Empty for an address."""
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

"""Media as Gemini takes them over either of its protocols: by an address that it fetches, or as bytes."""

from __future__ import annotations

from base64 import b64encode
from mimetypes import guess_type
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from callboard.adapters.requests.media import WEB, is_remote, media_bytes, media_type_of
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock

Media: TypeAlias = ImageBlock | AudioBlock | DocumentBlock

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
AUDIO_TYPES = (
    "audio/wav", "audio/x-wav", "audio/wave", "audio/mp3", "audio/mpeg", "audio/aiff", "audio/x-aiff", "audio/aac",
    "audio/ogg", "audio/flac", "audio/x-flac",
)  # fmt: skip
VIDEO_TYPES = (
    "video/mp4", "video/mpeg", "video/quicktime", "video/avi", "video/x-flv", "video/mpg", "video/webm",
    "video/wmv", "video/3gpp", "video/x-msvideo", "video/x-ms-wmv",
)  # fmt: skip
DOCUMENT_TYPES = (
    *VIDEO_TYPES, "application/pdf", "application/json", "text/plain", "text/markdown", "text/html", "text/css",
    "text/csv", "text/xml", "text/md", "text/x-python", "text/rtf", "text/javascript",
)  # fmt: skip
SCHEMES = (*WEB, "gs")

_ALIASES = {
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mpeg": "audio/mp3",
    "audio/x-aiff": "audio/aiff",
    "audio/x-flac": "audio/flac",
    "application/json": "text/plain",
    "video/x-msvideo": "video/avi",
    "video/x-ms-wmv": "video/wmv",
}
"""Media types by the names that the wire has for them."""

NEITHER = "its url is neither http(s), gs nor a data url"
"""Why a medium can't be sent."""


class SentMedium(NamedTuple):
    """A medium as it is sent. It has a url or data."""

    media_type: str | None
    """The media type by the wire's name: empty for bytes of an unknown type, None for such an address."""
    url: str | None = None
    """The address that the provider fetches."""
    data: str = ""
    """The bytes in base64."""


def sent_medium(media: Media) -> SentMedium | None:
    """How a medium is sent; None if neither its address nor its bytes can be."""
    if media.url is not None and is_remote(media.url, SCHEMES):
        media_type = media.media_type or guess_type(urlsplit(media.url).path)[0]
        return SentMedium(media_type and _ALIASES.get(media_type, media_type), url=media.url)
    found = media_bytes(media)
    if found is None:
        return None
    media_type = media_type_of(media) or ""
    return SentMedium(_ALIASES.get(media_type, media_type), data=b64encode(found[1]).decode())

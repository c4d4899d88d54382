"""Images that a model made, as they come in replies: encoded bytes, or an address. Pure."""

from __future__ import annotations

from base64 import b64decode

from callboard.bus.values.content import ImageBlock
from callboard.bus.values.json import Json

from ..requests.media import is_remote, read_data_url


def image_of_base64(data: Json, media_type: Json = None) -> ImageBlock | None:
    """The image behind base64; None if it is none, or of no known type.

    Args:
        data: The base64.
        media_type: The type that the provider says. It counts only if the bytes don't show theirs.
    """
    if not isinstance(data, str) or not data:
        return None
    try:
        return _image(b64decode(data, validate=True), media_type)
    except ValueError:  # no base64, or no ASCII
        return None


def image_at(url: Json) -> ImageBlock | None:
    """The image at an address: of the web, or a data URL. None if it is none."""
    if not isinstance(url, str):
        return None
    if is_remote(url):
        return ImageBlock(url=url)
    found = read_data_url(url)
    return _image(found[1], found[0]) if found is not None and found[1] else None


def _image(data: bytes, media_type: Json) -> ImageBlock | None:
    named = media_type if isinstance(media_type, str) and media_type.startswith("image/") else None
    try:
        return ImageBlock(data=data)  # some servers label every image as the type that was asked for
    except ValueError:
        return None if named is None else ImageBlock(data=data, media_type=named)

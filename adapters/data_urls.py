"""Data URLs: small files, written out in their own address."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes


def read_data_url(url: str) -> tuple[str, bytes] | None:
    """The media type, which may be empty, and the bytes; None if it is no data URL or can't be decoded."""
    head, comma, body = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    media_type, *parameters = head[len("data:") :].lower().split(";")
    data = unquote_to_bytes(body)
    if "base64" not in parameters:
        return media_type, data
    try:
        return media_type, base64.b64decode(data, validate=False)
    except binascii.Error:
        return None

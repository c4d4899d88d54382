"""How large an image is, from the first bytes of its file."""

from __future__ import annotations

import struct


def image_pixels(data: bytes) -> int | None:
    """Width times height of a PNG, GIF, WebP or JPEG; None if the bytes don't say."""
    size = image_size(data)
    return size[0] * size[1] if size is not None else None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, GIF, WebP or JPEG; None if the bytes don't say."""
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

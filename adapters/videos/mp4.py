"""Whether an MP4 file is whole, by the sizes of its boxes (ISO/IEC 14496-12, clause 4.2)."""

from __future__ import annotations

import struct
from typing import BinaryIO

_HEAD = 8
_LARGE = 16


def is_whole_mp4(file: BinaryIO, size: int) -> bool:
    """Whether the boxes fill the file to its last byte, and the boxes that make it playable are there.

    Args:
        file: The file. Its position is moved.
        size: The size of the file in bytes.
    """
    at = 0
    kinds: set[bytes] = set()
    while at < size:
        file.seek(at)
        head = file.read(_LARGE)
        if len(head) < _HEAD:
            return False
        length, kind = struct.unpack_from(">I4s", head)
        if length == 1:
            if len(head) < _LARGE:
                return False
            (length,) = struct.unpack_from(">Q", head, _HEAD)
        if length == 0:
            return False  # "to the end of the file": it may be cut anywhere
        if length < _HEAD:
            return False
        kinds.add(kind)
        at += length
    return at == size and {b"ftyp", b"moov"} <= kinds

"""Vectors for tests and demos. A text has the same vector everywhere; texts that share words are near."""

from __future__ import annotations

import math
import re
import zlib
from array import array

from callboard.adapters.embeddings import Vector

_WORDS = re.compile(r"\w+")


def word_vector(text: str, dimensions: int) -> Vector:
    """Of length 1: each word adds to or takes from one number, whichever its checksum says."""
    numbers = [0.0] * dimensions
    for word in _WORDS.findall(text.lower()) or [""]:
        checksum = zlib.crc32(word.encode("utf-8", "replace"))
        numbers[checksum % dimensions] += 1.0 if checksum & 0x80000000 else -1.0
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", (number / length for number in numbers))

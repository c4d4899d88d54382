"""The vectors of a reply, which come as float32 in base64 or as JSON numbers."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence

from callboard.bus.errors import StreamError

from .contract import Vector

_BYTES = 4
_LOOKED_AT = 64
"""How many numbers of a vector are checked. A vector of less than an eighth of them is not."""
_LEAST, _MOST = 1e-15, 1e12
"""The sizes between which the numbers of embeddings lie, zero apart. Bytes that are no floats lie far outside."""


def read_vector(value: str | Sequence[float]) -> Vector:
    """A vector in either form, whichever was asked for. Raises StreamError for anything else."""
    if not isinstance(value, str):
        return from_numbers(value)
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise StreamError(f"a vector is no base64: {error}") from error
    return from_bytes(raw)


def from_bytes(raw: bytes) -> Vector:
    """The vector of little-endian float32 numbers.

    Some servers send int8 numbers under the same label, which would read as nonsense.

    Raises:
        StreamError: The bytes are no such numbers.
    """
    if not raw or len(raw) % _BYTES:
        raise StreamError(f"a vector of {len(raw)} bytes is not made of float32 numbers")
    vector = array("f")
    vector.frombytes(raw)
    if sys.byteorder == "big":
        vector.byteswap()
    head = vector[:_LOOKED_AT]
    odd = sum(not (number == 0 or _LEAST < abs(number) < _MOST) for number in head)
    if len(head) >= _LOOKED_AT // 8 and odd * 4 > len(head):
        what = f"a vector of {len(raw)} bytes is not made of float32 numbers; they may be int8: ask for floats"
        raise StreamError(what, retryable=False)
    return vector


def from_numbers(numbers: Sequence[float]) -> Vector:
    """The vector of JSON's numbers, rounded to the float32 that models compute in. Raises StreamError."""
    if not numbers:
        raise StreamError("a vector is empty")
    try:
        return array("f", numbers)
    except (OverflowError, TypeError) as error:
        raise StreamError(f"a vector has what is no number: {error}") from error

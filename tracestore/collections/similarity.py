"""Cosine similarity over vectors that are stored as little-endian float32; numpy is used where it is installed.

A vector of zeros is similar to nothing: its similarity is 0.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import mul
from typing import TypeAlias

Scores: TypeAlias = Callable[[Sequence[bytes]], list[float]]
"""The similarities of some stored vectors with a vector that is given."""


def packed(vector: Sequence[float]) -> bytes:
    """A vector as it is stored."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpacked(data: bytes) -> array[float]:
    """The vector that was stored."""
    numbers = array("f")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def scores_with(data: bytes) -> Scores:
    """The function that compares with a stored vector. All are of one length."""
    try:
        import numpy
    except ImportError:
        return plain_scores(data)

    def scores(stored: Sequence[bytes]) -> list[float]:
        if not stored:
            return []
        wanted = numpy.frombuffer(data, "<f4").astype("f8")
        rows = numpy.frombuffer(b"".join(stored), "<f4").reshape(len(stored), -1).astype("f8")
        lengths = numpy.sqrt((rows * rows).sum(axis=1)) * math.sqrt(float(wanted @ wanted))
        found: list[float] = numpy.divide(
            rows @ wanted, lengths, out=numpy.zeros(len(stored)), where=lengths > 0
        ).tolist()
        return found

    return scores


def plain_scores(data: bytes) -> Scores:
    """The same with nothing but Python."""
    wanted = unpacked(data)
    length = _length(wanted)

    def score(stored: bytes) -> float:
        other = unpacked(stored)
        lengths = length * _length(other)
        return sum(map(mul, wanted, other)) / lengths if lengths else 0.0

    return lambda stored: [score(each) for each in stored]


def _length(vector: Iterable[float]) -> float:
    return math.sqrt(sum(number * number for number in vector))

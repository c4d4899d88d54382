"""Sizes and aspect ratios of images and videos."""

from __future__ import annotations

import math
import re

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_RATIO = re.compile(r"([1-9]\d{0,3}):([1-9]\d{0,3})")

USUAL_PIXELS = 1024 * 1024
"""The pixels of an image, about, if its aspect ratio alone was asked for."""


def read_size(text: str) -> tuple[int, int] | None:
    """Width and height of ``WIDTHxHEIGHT``; None if it is something else."""
    found = _SIZE.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def read_ratio(text: str) -> tuple[int, int] | None:
    """The two numbers of ``16:9`` in lowest terms; None if the text is something else."""
    found = _RATIO.fullmatch(text)
    if found is None:
        return None
    width, height = int(found[1]), int(found[2])
    common = math.gcd(width, height)
    return width // common, height // common


def ratio_of(width: int, height: int) -> str:
    """The aspect ratio of a size, as ``16:9``."""
    common = math.gcd(width, height)
    return f"{width // common}:{height // common}"


def size_of_ratio(ratio: tuple[int, int], step: int) -> tuple[int, int]:
    """The size of exactly that ratio, of multiples of `step` pixels, that comes nearest to `USUAL_PIXELS`."""
    width, height = ratio[0] * step, ratio[1] * step
    factor = math.sqrt(USUAL_PIXELS / (width * height))
    lower = max(1, math.floor(factor))
    times = min((lower, lower + 1), key=lambda n: abs(math.log(n / factor)))
    return width * times, height * times

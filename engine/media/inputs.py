"""Images that a host gives: to edit, to compose, or for a video to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from callboard.adapters import ImageBlock

ImageInput: TypeAlias = ImageBlock | bytes | str | Path
"""An image: a block, the bytes of a file, or the path of a file."""


def image_block(given: ImageInput) -> ImageBlock:
    """An image as a block.

    Raises:
        OSError: The file can't be read.
        ValueError: The bytes are no image.
    """
    match given:
        case ImageBlock():
            return given
        case bytes():
            return ImageBlock(data=given)
        case str() | Path():
            return ImageBlock.from_path(given)

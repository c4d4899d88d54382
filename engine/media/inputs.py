"""What is asked for in images and videos: a model, and images to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from adapters import ImageBlock

ImageInput: TypeAlias = ImageBlock | bytes | str | Path
"""An image to begin with: a block, the bytes of a file, or where the file is."""

Models: TypeAlias = str | Sequence[str] | None
"""A model by any of its names, or several in the order in which they may serve; None is the configured default."""


def image_block(given: ImageInput) -> ImageBlock:
    """Raises OSError; ValueError for what is no image."""
    match given:
        case ImageBlock():
            return given
        case bytes():
            return ImageBlock(data=given)
        case str() | Path():
            return ImageBlock.from_path(given)

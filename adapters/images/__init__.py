"""Images: the contract of the adapters that make them, and one module for each wire."""

from .contract import (
    GeneratedImage,
    ImageAdapter,
    ImageCapabilities,
    ImageOperation,
    ImageRequest,
    ImageResponse,
)

__all__ = [
    "GeneratedImage",
    "ImageAdapter",
    "ImageCapabilities",
    "ImageOperation",
    "ImageRequest",
    "ImageResponse",
]

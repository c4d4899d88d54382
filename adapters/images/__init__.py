"""Images: what an adapter that makes them promises, and how it is driven over HTTP."""

from .contract import GeneratedImage, ImageAdapter, ImageCapabilities, ImageOperation, ImageRequest, ImageResponse

__all__ = [
    "GeneratedImage",
    "ImageAdapter",
    "ImageCapabilities",
    "ImageOperation",
    "ImageRequest",
    "ImageResponse",
]

"""Images and videos: made by whichever model is asked for, traced and priced like every call."""

from .images import ImageOptions, ImageResult
from .videos import VideoHandle, VideoOptions, VideoResult

__all__ = ["ImageOptions", "ImageResult", "VideoHandle", "VideoOptions", "VideoResult"]

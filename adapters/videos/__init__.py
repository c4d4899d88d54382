"""Videos: what an adapter that makes them promises, how jobs are driven over HTTP, waited for and downloaded."""

from .contract import (
    VIDEO_VARIANTS,
    VideoAdapter,
    VideoCapabilities,
    VideoContent,
    VideoJob,
    VideoRequest,
    VideoStatus,
    VideoTerms,
    VideoVariant,
)
from .download import download_video, download_video_to
from .waiting import PollPolicy, wait_for_video

__all__ = [
    "VIDEO_VARIANTS",
    "PollPolicy",
    "VideoAdapter",
    "VideoCapabilities",
    "VideoContent",
    "VideoJob",
    "VideoRequest",
    "VideoStatus",
    "VideoTerms",
    "VideoVariant",
    "download_video",
    "download_video_to",
    "wait_for_video",
]

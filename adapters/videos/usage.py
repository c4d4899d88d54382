"""The billing of a video: its seconds, under the name of the rate for its resolution and its sound.

The names are ``video_second``, with the shorter side for a resolution above 720p (``video_second_1080p``), and
with ``_silent`` at the end if sound was deselected. A price table has a rate for each name that costs something. A
missing rate makes the job unpriced, with the name in the reason. Without a known length the video itself is the
piece: ``video``.
"""

from __future__ import annotations

from callboard.adapters.images.sizes import read_size
from callboard.bus.values.usage import TokenUsage

from .contract import VideoTerms

USUAL_SIDE = 720


def video_usage(terms: VideoTerms) -> TokenUsage:
    """The usage of a completed job."""
    if terms.seconds is None:
        return TokenUsage(details={"video": 1})
    name = "video_second"
    size = None if terms.size is None else read_size(terms.size)
    if size is not None and min(size) > USUAL_SIDE:
        name += f"_{min(size)}p"
    if terms.audio is False:
        name += "_silent"
    return TokenUsage(details={name: terms.seconds})

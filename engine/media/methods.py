"""Images and videos as methods of the engine. What makes them is imported by the first that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from adapters import ImageBlock

if TYPE_CHECKING:
    from adapters.video import PollPolicy

    from ..engine import Engine
    from .asking import ImageInput, Models
    from .handle import VideoHandle
    from .images import ImageArguments, ImageResult
    from .videos import VideoArguments


class MediaMethods:
    """What `Engine` can do besides, for images and videos.

    model: any of a model's names, or several in the order in which they may serve; None is the configured default.
    """

    async def generate_image(
        self, prompt: str, *, model: Models = None, **options: Unpack[ImageArguments]
    ) -> ImageResult:
        """Images of what the prompt says. For the options see `ImageOptions`.

        Raises CapabilityError before anything is sent for what the model can't do; OutcomeUnknownError if the
        answer was lost, so that it may have been made and be billed; other AdapterErrors; ConfigurationError.
        """
        from .images import ImageOptions, make_images

        engine = cast("Engine", self)
        return await make_images(engine, prompt, (), None, model, ImageOptions(**options))

    async def edit_image(
        self,
        prompt: str,
        images: ImageInput | Sequence[ImageInput],
        *,
        mask: ImageInput | None = None,
        model: Models = None,
        **options: Unpack[ImageArguments],
    ) -> ImageResult:
        """An image changed as the prompt says, or several composed into one. Paths are read now.

        mask: a PNG as large as the first image; only where it is transparent may anything change. Raises what
        `generate_image` raises; OSError, and ValueError for what is no image.
        """
        from .images import ImageOptions, make_images

        given = (images,) if isinstance(images, ImageBlock | bytes | str | Path) else tuple(images)
        if not given:
            raise ValueError("there is no image to edit")
        return await make_images(cast("Engine", self), prompt, given, mask, model, ImageOptions(**options))

    async def create_video(
        self, prompt: str, *, model: Models = None, **options: Unpack[VideoArguments]
    ) -> VideoHandle:
        """A job that makes a video; returns when the provider has taken it on. For the options see `VideoOptions`.

        `await handle.wait()` for its end, then `handle.download()`. It goes on without us: `resume_video` comes
        back to it. Raises as `generate_image` does; nothing is asked for twice.
        """
        from .videos import VideoOptions, create_video

        return await create_video(cast("Engine", self), prompt, model, VideoOptions(**options))

    async def resume_video(
        self,
        job_id: str,
        model: str,
        *,
        seconds: int | None = None,
        size: str | None = None,
        audio: bool | None = None,
        polling: PollPolicy | None = None,
    ) -> VideoHandle:
        """A job that was created before, also by another process, as it is now.

        seconds, size, audio: what it makes, for its price; by default what the provider says, or the trace of its
        creation. polling: when to look at it; None is the usual. A job whose cost is in the trace already is not
        counted again. Raises AdapterError, among them NotFoundError; ConfigurationError.
        """
        from adapters.video import VideoTerms
        from adapters.video.waiting import USUAL_POLLING

        from .videos import resume_video

        asked = VideoTerms(seconds, size, audio)
        return await resume_video(cast("Engine", self), job_id, model, asked, polling or USUAL_POLLING)

"""Images and videos as methods of the engine. What makes them is imported by the first that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from adapters import ImageBlock

from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from adapters.videos import PollPolicy

    from .images import ImageArguments, ImageResult
    from .inputs import ImageInput, Models
    from .video_handle import VideoHandle
    from .videos import VideoArguments


class MediaMethods:
    """What `Engine` can do besides, for images and videos.

    model: any of a model's names, or several in the order in which they may serve; None is the configured default.
    """

    _runtime: Runtime

    async def generate_image(
        self, prompt: str, *, model: Models = None, **options: Unpack[ImageArguments]
    ) -> ImageResult:
        """Images of what the prompt says. Each time it costs money, so nothing is asked for twice unless the first
        time surely came to nothing; cancelling the task that waits here doesn't keep it from being made and
        billed.

        model: any of its names, or several in the order in which they may serve; None is the configured default.
        options: the fields of `ImageOptions`.
        Raises CapabilityError before anything is sent for what the model can't do; OutcomeUnknownError if the
        answer was lost, so that it may have been made and be billed; other AdapterErrors; ConfigurationError;
        AdmissionError.
        """
        from .images import ImageOptions, make_images

        runtime = self._runtime
        return await make_images(runtime, prompt, (), None, model, ImageOptions(**options))

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

        images: blocks, bytes or paths. mask: a PNG as large as the first image; only where it is transparent may
        anything change. model, options: as in `generate_image`.
        Raises what `generate_image` raises; OSError, and ValueError for what is no image, and for none at all.
        """
        from .images import ImageOptions, make_images

        given = (images,) if isinstance(images, ImageBlock | bytes | str | Path) else tuple(images)
        if not given:
            raise ValueError("there is no image to edit")
        return await make_images(self._runtime, prompt, given, mask, model, ImageOptions(**options))

    async def create_video(
        self, prompt: str, *, model: Models = None, **options: Unpack[VideoArguments]
    ) -> VideoHandle:
        """A job that makes a video; returns when the provider has taken it on.

        `await handle.wait()` for its end, then `handle.download()`. It goes on without us: `resume_video` comes
        back to it. Nothing is asked for twice; cancelling the task that waits here still waits up to ten seconds
        for the job's id, which is then in the trace. model: as in `generate_image`. options: the fields of
        `VideoOptions`. Raises as `generate_image` does; OSError and ValueError for a first frame that is no image.
        """
        from .videos import VideoOptions, create_video

        return await create_video(self._runtime, prompt, model, VideoOptions(**options))

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

        Within one engine it is always the same handle. A job whose cost is in the trace already is not counted
        again.
        job_id: the provider's, `VideoHandle.id`. model: that made it, `VideoHandle.model`. seconds, size, audio:
        what it makes, for its price; by default what the provider says, or the trace of its creation. polling:
        when to look at it; None is the usual.
        Raises AdapterError, among them NotFoundError; ConfigurationError; StoreError.
        """
        from adapters.videos import VideoTerms
        from adapters.videos.waiting import USUAL_POLLING

        from .videos import resume_video

        asked = VideoTerms(seconds, size, audio)
        return await resume_video(self._runtime, job_id, model, asked, polling or USUAL_POLLING)

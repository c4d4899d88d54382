"""Vectors, images and videos as methods of the engine. What makes them is imported by the first call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from callboard.adapters import ImageBlock

from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from callboard.adapters.jobs import PollPolicy

    from ..calls.plain_call import Models
    from ..embedding import EmbeddingOptions, EmbeddingResult
    from .images import ImageOptions, ImageResult
    from .inputs import ImageInput
    from .video_handle import VideoHandle
    from .videos import VideoOptions


class MediaMethods:
    """The methods of `Engine` for vectors, images and videos."""

    _runtime: Runtime

    async def embed(
        self,
        texts: Sequence[str] | str,
        *,
        model: Models = None,
        **options: Unpack[EmbeddingOptions],
    ) -> EmbeddingResult:
        """The vectors of texts, however many. The texts are cut into batches that the provider takes, several of
        them at once.

        Each batch is a call of its own, and retried by itself. Without texts nothing is sent, and nothing costs.
        Cancelling the task that waits here ends all batches; the vectors that had come are lost, and paid for.

        Args:
            texts: The texts, or one text.
            model: Any of a model's names, or several names of one and the same model; None is the configured
                default.
            options: The fields of `EmbeddingOptions`.

        Raises:
            PartialEmbeddingError: Some texts could not be embedded; the exception has the vectors of the others.
            AdapterError: No text could be embedded.
            ConfigurationError: The configuration is wrong, or the vectors of two models can't be compared.
            AdmissionError: The trace writer is too far behind.
        """
        from ..embedding import embed

        return await embed(self._runtime, texts, model, options)

    async def generate_image(
        self, prompt: str, *, model: Models = None, **options: Unpack[ImageOptions]
    ) -> ImageResult:
        """Images of what a prompt describes.

        Each request costs money, so nothing is asked for twice unless the first request surely came to nothing.
        Cancelling the task that waits here doesn't keep an image from being made and billed.

        Args:
            prompt: The description.
            model: Any of a model's names, or several in the order in which they may serve; None is the configured
                default.
            options: The fields of `ImageOptions`.

        Raises:
            CapabilityError: The model can't do what is asked; nothing was sent.
            OutcomeUnknownError: The answer was lost; an image may have been made and be billed.
            AdapterError: The provider failed or refused.
            ConfigurationError: The configuration is wrong.
            AdmissionError: The trace writer is too far behind.
        """
        from .images import make_images

        return await make_images(self._runtime, prompt, (), None, model, options)

    async def edit_image(
        self,
        prompt: str,
        images: ImageInput | Sequence[ImageInput],
        *,
        mask: ImageInput | None = None,
        model: Models = None,
        **options: Unpack[ImageOptions],
    ) -> ImageResult:
        """An image changed as the prompt says, or several images composed into one.

        Besides the exceptions of `generate_image` there are those of reading a file. Files are read now.

        Args:
            prompt: The description of the change.
            images: Blocks, bytes or paths of the images.
            mask: A PNG as large as the first image; only where it is transparent may anything change.
            model: As in `generate_image`.
            options: As in `generate_image`.

        Raises:
            OSError: A file can't be read.
            ValueError: There is no image, or a file is none.
        """
        from .images import make_images

        given = (images,) if isinstance(images, ImageBlock | bytes | str | Path) else tuple(images)
        if not given:
            raise ValueError("there is no image to edit")
        return await make_images(self._runtime, prompt, given, mask, model, options)

    async def create_video(
        self, prompt: str, *, model: Models = None, **options: Unpack[VideoOptions]
    ) -> VideoHandle:
        """A job that makes a video. It returns when the provider has taken the job on.

        `await handle.wait()` for its end, then `handle.download()`. The job goes on without this process:
        `resume_video` comes back to it. Nothing is asked for twice. Cancelling the task that waits here still
        waits up to ten seconds for the job's id, which is then in the trace. The exceptions are those of
        `generate_image`.

        Args:
            prompt: The description.
            model: As in `generate_image`.
            options: The fields of `VideoOptions`.

        Raises:
            OSError: The first frame can't be read.
            ValueError: The first frame is no image.
        """
        from .videos import create_video

        return await create_video(self._runtime, prompt, model, options)

    async def resume_video(
        self,
        job_id: str,
        model: str,
        *,
        seconds: int | None = None,
        size: str | None = None,
        audio: bool | None = None,
        key: str | None = None,
        polling: PollPolicy | None = None,
    ) -> VideoHandle:
        """A job that was created before, also by another process, as it is now.

        Within one engine it is always the same handle. A job whose cost is in the trace already is not counted
        again.

        Args:
            job_id: The provider's id of the job, `VideoHandle.id`.
            model: The model that was asked, `VideoHandle.model`.
            seconds: The length of the video, for its price; None is what the provider or the trace says.
            size: The size of the video, for its price; None is what the provider or the trace says.
            audio: Whether the video has sound, for its price; None is what the provider or the trace says.
            key: The name of the key that the job was created with; None is what the trace says.
            polling: The times at which the job is looked at; None is the usual.

        Raises:
            NotFoundError: The provider knows no such job.
            AdapterError: The provider failed.
            ConfigurationError: The model is unknown.
            StoreError: The trace can't be read.
        """
        from callboard.adapters.jobs import USUAL_POLLING
        from callboard.adapters.videos import VideoTerms

        from .videos import resume_video

        asked = VideoTerms(seconds, size, audio, key)
        return await resume_video(self._runtime, job_id, model, asked, polling or USUAL_POLLING)

"""Operations other than conversations as methods of the engine. The first call imports their code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from callboard.adapters import CanonicalRequest, ImageBlock
from callboard.bus import CallboardError
from callboard.tracestore import OpenReply

from ..conversation.options import TurnOptions, merged
from ..conversation.turn import Turn
from ..conversation.turn_context import FirstIds
from ..runtime.runtime import Runtime, settled_store
from ..sessions.state import SessionState

if TYPE_CHECKING:
    from callboard.adapters.http.retry import PollPolicy
    from callboard.tracestore import StoredBatch

    from ..calls.plain_call import Models
    from ..conversation.results import GenerateResult
    from ..generation.streaming import StreamResult
    from .batch_creation import BatchOptions
    from .batch_handle import BatchHandle
    from .embeddings import EmbeddingOptions, EmbeddingResult, ImageInput, ImageOptions, ImageResult
    from .videos import VideoHandle, VideoOptions


class OperationMethods:
    """The methods of `Engine` for everything besides conversations."""

    _runtime: Runtime

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]] | str,
        *,
        model: Models = None,
        **options: Unpack[EmbeddingOptions],
    ) -> EmbeddingResult:
        """The vectors of any number of texts. The texts are sent in batches that the provider accepts, several
        concurrently.

        Each batch is a separate call with its own retries. Without texts nothing is sent, and the result is free.
        If the waiting task is cancelled, all batches end. Vectors that had arrived are lost, and billed.

        Args:
            texts: The texts, or one text. A list of integers is a text's tokens. Few providers accept them.
            model: Any of a model's names, or several names of the same model; None is the configured default.
            options: The fields of `EmbeddingOptions`.

        Raises:
            PartialEmbeddingError: Some texts could not be embedded; the exception has the vectors of the others.
            AdapterError: No text could be embedded.
            ConfigurationError: The configuration is wrong, or the vectors of two models can't be compared.
            AdmissionError: The trace writer is too far behind.
        """
        from .embeddings import embed

        return await embed(self._runtime, texts, model, options)

    async def generate_image(
        self, prompt: str, *, model: Models = None, **options: Unpack[ImageOptions]
    ) -> ImageResult:
        """Create images from a description.

        Each request costs money, so a request is repeated only if the first one certainly had no effect.
        Cancelling the waiting task doesn't stop the image from being made and billed.

        Args:
            prompt: The description.
            model: Any of a model's names, or several in the order in which they may serve; None is the configured
                default.
            options: The fields of `ImageOptions`.

        Raises:
            CapabilityError: The model does not support the request; nothing was sent.
            OutcomeUnknownError: The answer was lost; an image may have been made and be billed.
            AdapterError: The provider failed or refused.
            ConfigurationError: The configuration is wrong.
            AdmissionError: The trace writer is too far behind.
        """
        from .embeddings import make_images

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
        """Edit an image as the prompt describes, or compose several images into one.

        The exceptions of `generate_image` and those of reading a file are raised. Files are read now.

        Args:
            prompt: The description of the change.
            images: Blocks, bytes or paths of the images.
            mask: A PNG as large as the first image; only its transparent part may be changed.
            model: As in `generate_image`.
            options: As in `generate_image`.

        Raises:
            OSError: A file can't be read.
            ValueError: There is no image, or a file is not an image.
        """
        from .embeddings import make_images

        given = (images,) if isinstance(images, ImageBlock | bytes | str | Path) else tuple(images)
        if not given:
            raise ValueError("pass an image to edit")
        return await make_images(self._runtime, prompt, given, mask, model, options)

    async def create_video(
        self, prompt: str, *, model: Models = None, **options: Unpack[VideoOptions]
    ) -> VideoHandle:
        """Start a job that makes a video. It returns when the provider has accepted the job.

        Then use `await handle.wait()` and `handle.download()`. The job continues without this process, and
        `resume_video` returns to it. No request is repeated. If you cancel the waiting task, it still waits up to
        ten seconds for the job's id, which is then in the trace. The exceptions are as in `generate_image`.

        Args:
            prompt: The description.
            model: As in `generate_image`.
            options: The fields of `VideoOptions`.

        Raises:
            OSError: The first frame can't be read.
            ValueError: The first frame is not an image.
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
        """The current state of a job that was created before, also by another process.

        Within one engine it is always the same handle. A job that is already counted in the trace is not counted
        again.

        Args:
            job_id: The provider's id of the job, `VideoHandle.id`.
            model: The model of the job, `VideoHandle.model`.
            seconds: The length of the video, for its price; None takes it from the provider or the trace.
            size: The size of the video, for its price; None takes it from the provider or the trace.
            audio: Whether the video has sound, for its price; None takes it from the provider or the trace.
            key: The name of the key that the job was created with; None takes it from the trace.
            polling: The intervals between checks of the job; None means the default.

        Raises:
            NotFoundError: The provider has no such job.
            AdapterError: The provider failed.
            ConfigurationError: The model is unknown.
            StoreError: The trace can't be read.
        """
        from callboard.adapters.http.retry import USUAL_POLLING
        from callboard.adapters.videos import VideoTerms

        from .videos import resume_video

        asked = VideoTerms(seconds, size, audio, key)
        return await resume_video(self._runtime, job_id, model, asked, polling or USUAL_POLLING)

    # --- Batches ---

    async def create_batch(
        self,
        requests: Sequence[CanonicalRequest],
        *,
        model: Models = None,
        batch_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle:
        """Send many requests for one model, answered within about a day and mostly for half the price.

        It returns when the provider has accepted all requests. Use `await handle.wait()` for the results. The
        batch continues without this process, and `resume_batch` returns to it. Requests that exceed one job of the
        provider are split into several.

        No request is billed twice. You may create a batch with your own id again, in any process, with the same
        requests: the parts sent already are found, and the rest is sent. So a program that may be killed at any
        moment passes ``batch_id``, and simply runs again. If several programs with the same trace do this, one
        sends the batch, and the others wait for it.

        Args:
            requests: The requests. Each result has the `request_id` of its request; without one, it has the id of
                the call.
            model: Any of the model's names; None is that of the requests, or the configured default.
            batch_id: The batch's id: 1 to 48 letters, digits, ``_`` and ``-``. None makes one.
            options: The fields of `BatchOptions`.

        Raises:
            InvalidRequestError: There are no requests, they are for several models, or the batch of that id has
                other requests.
            CapabilityError: The provider has no batches, or the model can't serve a request.
            OutcomeUnknownError: The answer was lost, and the provider lists no such batch, or several. Create it
                again with the same id.
            BudgetExceededError: The most that the batch can cost doesn't fit into a budget.
            AdapterError: The provider failed or refused.
            ConfigurationError: The configuration is wrong.
            AdmissionError: The trace writer is too far behind.
            StoreError: The trace can't be read.
        """
        from .batch_creation import create_batch

        return await create_batch(self._runtime, requests, model, batch_id, options)

    async def resume_batch(
        self,
        batch_id: str,
        *,
        requests: Sequence[CanonicalRequest] | None = None,
        polling: PollPolicy | None = None,
        settle_seconds: float | None = None,
    ) -> BatchHandle:
        """The current state of a batch that was created before, also by another process. It sends nothing.

        Within one engine it is always the same handle. Results that are in the trace already are not counted
        again.

        Args:
            batch_id: The batch's id, `BatchHandle.id`.
            requests: The requests, if available: the results then have the warnings about fields that were left
                out, and inputs of tools are cleaned as in any other call.
            polling: The intervals between checks of the batch; None means the default.
            settle_seconds: Seconds after which a job is listed, if it was ever created; None means the default.

        Raises:
            NotFoundError: The trace or the provider has no such batch.
            InvalidRequestError: The batch has other requests.
            AdapterError: The provider failed.
            ConfigurationError: The model is unknown, or the engine has no trace.
            StoreError: The trace can't be read.
        """
        from .batch_creation import SETTLE_SECONDS, resume_batch
        from .batch_handle import USUAL_BATCH_POLLING

        settle = SETTLE_SECONDS if settle_seconds is None else settle_seconds
        return await resume_batch(self._runtime, batch_id, requests, polling or USUAL_BATCH_POLLING, settle)

    async def batches(self, limit: int = 100) -> list[StoredBatch]:
        """The latest batches in the trace, the latest first.

        Args:
            limit: The largest number of batches.

        Raises:
            StoreError: The trace can't be read.
        """
        from .batch_creation import stored_batches

        await self._runtime.host.start()
        return await stored_batches(self._runtime, limit)

    # --- Background replies ---

    async def open_replies(self, session_id: str | None = None) -> list[OpenReply]:
        """The replies requested with ``background=True`` by processes that have ended since.

        The provider continues them, or has finished them. The oldest comes first. Resume each with
        `Session.take_up` if it has a session, or else with `take_up`.

        Args:
            session_id: A session; None is all, and calls without one.

        Raises:
            StoreError: The trace, or a file that an earlier process left next to it, can't be read.
        """

        return await open_replies(self._runtime, session_id)

    async def take_up(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> GenerateResult:
        """Wait for a reply that another process has requested, without a new request.

        It is the same call in the trace. It ends now, and is priced as of its start. The exceptions are those of
        `generate`.

        Args:
            reply: The reply, as returned by `open_replies`.
            options: The options of the turn, such as `call_timeout_seconds`.

        Raises:
            OutcomeUnknownError: The provider no longer has the reply.
        """
        from ..conversation.turn import own
        from ..generation.arguments import result_of

        turn = turn_of_reply(self._runtime, reply, options, streamed=False)
        await own(turn, await self._runtime.host.start_turn(turn))
        return result_of(turn)

    def take_up_stream(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> StreamResult:
        """`take_up`, streamed: first the earlier part of the reply, and then the rest as it arrives."""
        from ..generation.streaming import StreamResult

        return StreamResult(self._runtime, turn_of_reply(self._runtime, reply, options, streamed=True))


async def open_replies(runtime: Runtime, session_id: str | None) -> list[OpenReply]:
    """See `Engine.open_replies`."""
    await runtime.host.start()
    await settled_store(runtime)
    store = await runtime.sessions.trace()
    if runtime.store is None or store is None or not store.is_open:
        return []
    state = None if session_id is None else runtime.sessions.states.get(session_id)
    return await store.open_replies(session_id, owned=state is not None and bool(state.epoch))


def turn_of_reply(
    runtime: Runtime, reply: OpenReply, options: TurnOptions, *, streamed: bool, state: SessionState | None = None
) -> Turn:
    """A turn that resumes a reply. It is not run yet."""
    if state is None:
        state = SessionState("", reply.model, None, (), reply.tags or {})
    elif reply.session_id != state.id:
        raise CallboardError(f"reply {reply.response_id} belongs to session {reply.session_id!r}, not to this one")
    return Turn(
        runtime=runtime,
        state=state,
        new=(),
        model=reply.model,
        options=merged(options, {"fallback": ()}),
        streamed=streamed,
        first_ids=FirstIds(reply.request_id, reply.message_id),
        takes_up=reply,
    )

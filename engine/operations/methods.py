"""The methods of the engine for operations other than conversations. Their code is imported at the first call."""

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
from ..sessions.open import SessionState

if TYPE_CHECKING:
    from callboard.adapters.http.retry import PollPolicy
    from callboard.tracestore import StoredBatch

    from ..conversation.results import GenerateResult
    from ..generation.streaming import StreamResult
    from .batch_creation import BatchOptions
    from .batch_handle import BatchHandle
    from .embeddings_and_images import EmbeddingOptions, EmbeddingResult, ImageInput, ImageOptions, ImageResult
    from .plain_calls import Models
    from .videos import VideoHandle, VideoOptions


class OperationMethods:
    _runtime: Runtime

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]] | str,
        *,
        model: Models = None,
        **options: Unpack[EmbeddingOptions],
    ) -> EmbeddingResult:
        """Return the vectors of any number of texts. They are sent in batches that the provider accepts, several
        concurrently.

        Each batch is a separate call with its own retries. Without texts, nothing is sent, and the result is free.
        If the waiting task is cancelled, all batches are cancelled. Vectors that have arrived are lost, but
        billed.

        Args:
            texts: The texts, or one text. A list of integers is a text's tokens. Few providers accept them.
            model: Any of a model's names, or several names of the same model; None uses the configured default.
            options: The fields of `EmbeddingOptions`.

        Raises:
            PartialEmbeddingError: Some texts could not be embedded; the exception has the vectors of the others.
            AdapterError: No text could be embedded.
            ConfigurationError: The configuration is wrong, or the vectors of two models can't be compared.
            AdmissionError: The trace writer is too far behind.
        """
        from .embeddings_and_images import embed

        return await embed(self._runtime, texts, model, options)

    async def generate_image(
        self, prompt: str, *, model: Models = None, **options: Unpack[ImageOptions]
    ) -> ImageResult:
        """Create images from a description.

        Each request costs money, so a request is repeated only if the first one certainly had no effect. If the
        waiting task is cancelled, the image is still created and billed.

        Args:
            prompt: The description.
            model: Any of a model's names, or several names in order of preference; None uses the configured
                default.
            options: The fields of `ImageOptions`.

        Raises:
            CapabilityError: The model does not support the request; nothing was sent.
            OutcomeUnknownError: The answer was lost; an image may have been created and billed.
            AdapterError: The provider failed or refused.
            ConfigurationError: The configuration is wrong.
            AdmissionError: The trace writer is too far behind.
        """
        from .embeddings_and_images import make_images

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

        The exceptions of `generate_image` are raised here, too.

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
        from .embeddings_and_images import make_images

        image_inputs = (images,) if isinstance(images, ImageBlock | bytes | str | Path) else tuple(images)
        if not image_inputs:
            raise ValueError("pass an image to edit")
        return await make_images(self._runtime, prompt, image_inputs, mask, model, options)

    async def create_video(
        self, prompt: str, *, model: Models = None, **options: Unpack[VideoOptions]
    ) -> VideoHandle:
        """Start a job that creates a video. This returns when the provider has accepted the job.

        Then use `await handle.wait()` and `handle.download()`. The job continues without this process, and
        `resume_video` returns its handle again. If you cancel the waiting task, it still waits up to ten seconds
        for the job's id, which is then in the trace. The exceptions are as in `generate_image`.

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
        """Return the handle of a job that was created earlier. Another process may have created it.

        Within one engine, this is always the same handle. A job that the trace has already counted is not counted
        again.

        Args:
            job_id: The provider's id of the job, `VideoHandle.id`.
            model: The model of the job, `VideoHandle.model`.
            seconds: The length of the video, for its price; None takes it from the provider or the trace.
            size: The size of the video, for its price; None takes it from the provider or the trace.
            audio: Whether the video has sound, for its price; None takes it from the provider or the trace.
            key: The name of the key with which the job was created; None takes it from the trace.
            polling: The intervals between checks of the job; None uses the default.

        Raises:
            NotFoundError: The provider has no such job.
            AdapterError: The provider failed.
            ConfigurationError: The model is unknown.
            StoreError: The trace can't be read.
        """
        from callboard.adapters.http.retry import USUAL_POLLING
        from callboard.adapters.videos import VideoTerms

        from .videos import resume_video

        terms = VideoTerms(seconds, size, audio, key)
        return await resume_video(self._runtime, job_id, model, terms, polling or USUAL_POLLING)

    # --- Batches ---

    async def create_batch(
        self,
        requests: Sequence[CanonicalRequest],
        *,
        model: Models = None,
        batch_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle:
        """Send many requests for one model as a batch. The provider answers within about a day, usually for half
        the price.

        This returns when the provider has accepted all requests. Use `await handle.wait()` for the results. The
        batch continues without this process, and `resume_batch` returns its handle again. If the requests exceed
        the size of a provider's job, they are split into several jobs.

        No request is billed twice. If you pass your own ``batch_id``, you can call this again with the same
        requests, in any process. Only the missing parts are then sent. So a program that was killed can simply run
        again. If several programs with the same trace do this, one of them sends the batch, and the others wait
        for it.

        Args:
            requests: The requests. Each result has the `request_id` of its request; without one, it has the id of
                the call.
            model: Any of the model's names; None uses the model of the requests, or the configured default.
            batch_id: The batch's id: 1 to 48 letters, digits, ``_`` and ``-``. By default, a new id is made.
            options: The fields of `BatchOptions`.

        Raises:
            InvalidRequestError: There are no requests, they are for several models, or the batch of that id has
                other requests.
            CapabilityError: The provider has no batches, or the model can't serve a request.
            OutcomeUnknownError: The answer was lost, and the provider lists no such batch, or several. Create it
                again with the same id.
            BudgetExceededError: The maximum cost of the batch doesn't fit into a budget.
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
        """Return the handle of a batch that was created earlier. Another process may have created it. This sends
        no requests.

        Within one engine, this is always the same handle. Results that are already in the trace are not counted
        again.

        Args:
            batch_id: The batch's id, `BatchHandle.id`.
            requests: The requests, if you have them. Then the results have warnings about fields that were left
                out, and inputs of tools are cleaned as in any other call.
            polling: The intervals between checks of the batch; None uses the default.
            settle_seconds: Seconds after which the provider lists every job that was created; None uses the
                default.

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
            limit: The maximum number of batches.

        Raises:
            StoreError: The trace can't be read.
        """
        from .batch_creation import stored_batches

        await self._runtime.host.start()
        return await stored_batches(self._runtime, limit)

    # --- Background replies ---

    async def open_replies(self, session_id: str | None = None) -> list[OpenReply]:
        """The replies that processes requested with ``background=True`` before they ended.

        The provider continues these replies, or has finished them. The oldest comes first. Resume a reply with
        `Session.take_up` if it has a session. Otherwise use `take_up`.

        Args:
            session_id: Only replies of this session; None returns all replies, including those without a session.

        Raises:
            StoreError: The trace, or a file that an earlier process left next to it, can't be read.
        """
        return await open_replies(self._runtime, session_id)

    async def take_up(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> GenerateResult:
        """Wait for a reply that another process has requested. No new request is sent.

        The trace continues the same call. The call ends now, at the prices of its start. The exceptions are those
        of `generate`.

        Args:
            reply: The reply, as returned by `open_replies`.
            options: The options of the turn, such as `call_timeout_seconds`.

        Raises:
            OutcomeUnknownError: The provider no longer has the reply.
        """
        from ..conversation.turn import run_turn
        from ..generation.arguments import result_of

        turn = turn_of_reply(self._runtime, reply, options, streamed=False)
        await run_turn(turn)
        return result_of(turn)

    def take_up_stream(self, reply: OpenReply, **options: Unpack[TurnOptions]) -> StreamResult:
        """Stream `take_up`: first the earlier part of the reply, and then the rest as it arrives."""
        from ..generation.streaming import StreamResult

        return StreamResult(self._runtime, turn_of_reply(self._runtime, reply, options, streamed=True))


async def open_replies(runtime: Runtime, session_id: str | None) -> list[OpenReply]:
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
    """A turn that resumes a reply. It has not started."""
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

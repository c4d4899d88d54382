"""Videos: one call creates a job, and another records its end.

    running    the provider works on the job; each check may change its status
    done       the job has completed, failed or was cancelled, and no check changes it
    published  its end was published, and the cost of a completed job was counted

A running job has no open call in the trace, so this process may die. `VideoHandle._end` publishes the end of a job
once: the first handle that detects the end counts the cost, and later handles find it in the trace.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, overload
from weakref import WeakValueDictionary

import anyio
import msgspec

from callboard.adapters import AdapterError, AttemptObserver, CapabilityError, RetryPolicy, TokenUsage
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.operations.wires import check_video, video_usage
from callboard.adapters.videos import (
    PollPolicy,
    VideoAdapter,
    VideoJob,
    VideoRequest,
    VideoStatus,
    VideoTerms,
    VideoVariant,
    download_video,
    download_video_to,
    wait_for_video,
)
from callboard.bus import Cost, JobCompleted, JobCreated, JobFailed, JobProgress
from callboard.bus.errors import CancelledError, NotFoundError, RequestTimeoutError, StoreError
from callboard.bus.log import Log, takes_old_names
from callboard.bus.values.messages import CallWarning
from callboard.tracestore import StoredJob

from ..budgets.budgets import job_of
from ..routing.candidates import Named, Route, expand
from ..runtime.runtime import Runtime
from ..tree import tags_here
from .embeddings_and_images import ImageInput, image_block
from .plain_calls import (
    GRACE_SECONDS,
    CallOptions,
    EndedCall,
    JobAnswer,
    JobOrigin,
    Models,
    PerEngine,
    PlainCalls,
    decision_of,
    priced_as,
    require_known,
    with_adapter,
)

T = TypeVar("T")

OnProgress = Callable[[VideoJob], object]

OnBytes = Callable[[int, int | None], object]

_log = Log("engine.media")


class VideoResult(msgspec.Struct, frozen=True, kw_only=True):
    """A completed job, with its usage and cost."""

    job: VideoJob
    """The job at its end."""
    usage: TokenUsage
    """The usage: the seconds of the video, as a usage detail."""
    cost: Cost
    """The cost. It is counted once, when the job's end is first detected."""


class VideoHandle:
    """The handle of a job at its provider. The job continues without a handle. `Engine.resume_video` creates
    another one.

    Only `wait()` and `refresh()` check the job. They publish the job's progress and its end (`job.*`). The end is
    published once, and the cost of a completed job is counted once.
    """

    def __init__(
        self, runtime: Runtime, job: VideoJob, origin: JobOrigin, created_by: str | None, polling: PollPolicy
    ) -> None:
        self._runtime = runtime
        self._job = job
        self._origin = origin
        self._created_by = created_by
        self._polling = polling
        self._cost: Cost | None = None
        self._published = False
        self._cancelling = False  # True after `cancel()`. If the job is then missing, this handle has deleted it.
        self._looking = anyio.Lock()
        self._waiting = 0
        self._listeners: list[OnProgress] = []
        self._call = VideoCall(runtime, origin, created_by)

    @property
    def id(self) -> str:
        """The job's id at its provider, for `resume_video`."""
        return self._job.id

    @property
    def model(self) -> str:
        """The model's name, as in models.yaml or in the call, for `resume_video`."""
        return self._origin.decision.model

    @property
    def job(self) -> VideoJob:
        """The job at the last check."""
        return self._job

    @property
    def status(self) -> VideoStatus:
        """The status at the last check."""
        return self._job.status

    @property
    def cost(self) -> Cost | None:
        """The cost; None before the job is completed."""
        return self._cost

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Warnings, for example about parts of the request that the provider does not support."""
        return self._job.warnings

    # --- Checking ---

    async def refresh(self) -> VideoJob:
        """Check the job once. The check is skipped if the job has ended, or if another task waits for it.

        Raises:
            AdapterError: The check failed.
        """
        if self._waiting:
            return self._job
        async with self._looking:
            if not self._job.done:
                self._see(await self._retrieve())
            await self._end()
        return self._job

    @takes_old_names(timeout_seconds="timeout")
    async def wait(self, *, on_progress: OnProgress | None = None, timeout: float | None = None) -> VideoResult:
        """Wait for the end of the job. Any number of tasks may wait.

        After lost connections and provider errors, checks are retried, see `PollPolicy`. The job continues even if
        the wait ends early.

        Args:
            on_progress: Called with the job at every check. Its exceptions are raised here.
            timeout: Seconds to wait; None waits without limit.

        Returns:
            The completed job. Its cost is then counted in the trace.

        Raises:
            AdapterError: The job failed, or its checks failed permanently.
            CancelledError: The job was cancelled, or the engine was closed.
            RequestTimeoutError: The time is up.
        """
        limit = math.inf if timeout is None else timeout
        self._waiting += 1
        if on_progress is not None:
            self._listeners.append(on_progress)
        closed = f"the engine was closed, and video {self.id} continues. To resume, call {self._how_to_resume()}"
        try:
            with self._runtime.in_flight.call(closed), anyio.fail_after(limit):
                async with self._looking:
                    if not self._job.done:
                        await self._look_until_done()
                    await self._end()
        except TimeoutError as error:
            what = (
                f"video {self.id} is {self.status} after {limit:g} s, and continues. To resume, call "
                f"{self._how_to_resume()}"
            )
            raise RequestTimeoutError(what, provider=self._job.provider) from error
        finally:
            self._waiting -= 1
            if on_progress is not None:
                self._listeners.remove(on_progress)
        if self._job.status != "completed":
            raise self._error()
        assert self._cost is not None
        return VideoResult(job=self._job, usage=self._job.usage or TokenUsage(), cost=self._cost)

    async def _look_until_done(self) -> None:
        try:
            await wait_for_video(
                self._retrieve,
                self._job,
                policy=self._polling,
                random=self._runtime.clock.random,
                on_look=self._see,
            )
        except NotFoundError:
            if self._cancelling:
                self._see_cancelled()
            if not self._job.done:
                raise

    async def _retrieve(self) -> VideoJob:
        terms, model = self._job.terms, self._origin.wire_model
        return await self._with_adapter(lambda adapter: adapter.retrieve_video(self.id, model=model, terms=terms))

    def _see(self, job: VideoJob) -> None:
        if self._job.done:  # the job was cancelled during this check
            return
        before, self._job = self._job, job
        if (before.status, before.progress) != (job.status, job.progress):
            self._publish(JobProgress(**self._about(), status=job.status, progress=job.progress))
        for listener in tuple(self._listeners):
            listener(job)

    # --- The end ---

    async def _end(self) -> None:
        """If the job has ended, publish the end and count the cost, unless that was done before."""
        if not self._job.done or self._published:
            return
        job = self._job
        self._published = job.status != "completed"
        if self._published:
            self._fail(job)
            await self._call.secured()
            return
        counted = await self._counted_before()
        self._published = True
        if counted is not None:
            self._cost = counted
            return
        answer = JobAnswer(job, job.model, job.usage or TokenUsage())
        self._cost = self._call.complete(answer, job.terms.key)
        self._publish(JobCompleted(**self._about(), cost_nano_usd=self._cost.nano_usd, expires_at=job.expires_at))
        await self._call.secured()

    async def _counted_before(self) -> Cost | None:
        """The cost that another process or an earlier handle has counted."""
        try:
            return (await stored_job(self._runtime, self._job.provider, self.id)).counted
        except StoreError as error:
            _log.warning("previous_video_count_unknown", job_id=self.id, error=str(error))
            return None

    def _fail(self, job: VideoJob) -> None:
        error = self._error()
        self._call.fail(error, job.terms.key)
        name, message = type(error).__name__, str(error)[:2000]
        self._publish(JobFailed(**self._about(), status=job.status, error_type=name, message=message))

    def _error(self) -> AdapterError:
        job = self._job
        if job.status == "cancelled":
            return CancelledError(f"video {self.id} was cancelled", provider=job.provider)
        return job.error or AdapterError(f"video {self.id} failed", provider=job.provider)

    def _how_to_resume(self) -> str:
        return f"engine.resume_video({self.id!r}, {self.model!r})"

    # --- Downloads ---

    @overload
    async def download(
        self, variant: VideoVariant = "video", *, to: None = None, on_progress: OnBytes | None = None
    ) -> bytes: ...
    @overload
    async def download(
        self, variant: VideoVariant = "video", *, to: str | Path, on_progress: OnBytes | None = None
    ) -> Path: ...
    async def download(
        self,
        variant: VideoVariant = "video",
        *,
        to: str | Path | None = None,
        on_progress: OnBytes | None = None,
    ) -> bytes | Path:
        """Download a file of a completed job.

        A broken download continues at the same position, or starts again; see `adapters.videos`. Downloads are
        free, and can be repeated while the provider keeps the video.

        Args:
            variant: ``video``, ``thumbnail`` or ``spritesheet``.
            to: The path of a file. It is created when the download is complete.
            on_progress: Called with the number of bytes so far, and the total number, or None if the server
                doesn't report it.

        Returns:
            The bytes; with `to`, the path.

        Raises:
            InvalidRequestError: The job isn't completed.
            CapabilityError: The job has no such variant.
            AdapterError: The download failed.
            ConfigurationError: The job's adapter is no longer configured.
            OSError: The file can't be written.
        """
        job, random = self._job, self._runtime.clock.random
        entry = self._runtime.registry.adapters.get(job.provider)
        policy = RetryPolicy() if entry is None else entry.config.retry

        async def load(adapter: VideoAdapter) -> bytes | Path | OSError:
            try:
                if to is None:
                    return await download_video(
                        adapter, job, variant, random=random, policy=policy, on_progress=on_progress
                    )
                return await download_video_to(
                    adapter, job, to, variant, random=random, policy=policy, on_progress=on_progress
                )
            except OSError as error:
                return error  # an error of the file system, not a crash of the adapter

        loaded = await self._with_adapter(load)
        if isinstance(loaded, OSError):
            raise loaded
        return loaded

    async def cancel(self) -> bool:
        """Cancel the job, if the provider supports it. The provider may still bill it.

        The job is checked first. If it has already completed, it is billed and counted, and can be downloaded.

        Returns:
            False if the job has ended or is unknown.

        Raises:
            CapabilityError: The provider can't cancel jobs.
            AdapterError: The provider can't be reached, or refuses. The job continues.
        """
        if not await self._still_runs():
            return False

        model = self._origin.wire_model
        self._cancelling = True
        try:
            deleted = await self._with_adapter(lambda adapter: adapter.delete_video(self.id, model=model))
        except BaseException:
            self._cancelling = False
            raise
        if not deleted:
            return False
        self._see_cancelled()
        await self._end()
        return True

    async def _still_runs(self) -> bool:
        """Whether the job is still running. A provider may not list a new job yet."""
        if not self._job.done:
            with contextlib.suppress(NotFoundError):
                if self._waiting:  # The waiting task detects that the job is done, and counts it.
                    self._see(await self._retrieve())
                else:
                    await self.refresh()
        return not self._job.done

    def _see_cancelled(self) -> None:
        self._see(msgspec.structs.replace(self._job, status="cancelled"))

    def _with_adapter(self, work: Callable[[VideoAdapter], Awaitable[T]]) -> Awaitable[T]:
        return with_adapter(self._runtime, self._origin.decision.provider, work)

    def _about(self) -> dict[str, str]:
        return {"job_id": self.id, "kind": "video", "provider": self._job.provider, "model": self.model}

    def _publish(self, event: JobProgress | JobCompleted | JobFailed) -> None:
        self._runtime.bus.publish(event, request_id=self._created_by, tags=self._origin.tags)


class VideoCall(EndedCall):
    """The end of a job as a call. It also releases the reservation that was made when the job was created."""

    def __init__(self, runtime: Runtime, origin: JobOrigin, created_by: str | None) -> None:
        super().__init__(runtime, "video", origin, runtime.clock.new_id("req"), created_by)

    def _reservation(self) -> str | None:
        created_by = self.context.caused_by
        return None if created_by is None else job_of(created_by)


async def stored_job(runtime: Runtime, provider: str, job_id: str) -> StoredJob:
    """The trace's data about a job. Raises StoreError if the trace can't be read."""
    if runtime.store is None:
        return StoredJob()
    await runtime.host.settle()  # If leftover files can't be read, the trace may still have the job.
    return await runtime.store.job(provider, job_id) if runtime.store.is_open else StoredJob()


class VideoOptions(CallOptions, total=False):
    """The options for videos. An unsupported option raises CapabilityError before anything is sent.

    A fallback is tried only if the previous model certainly created nothing. Retries and the time limit apply to
    the creation of the job.
    """

    seconds: int | None
    """The length in seconds."""
    size: str | None
    """The size as ``WIDTHxHEIGHT``."""
    first_frame: ImageInput | None
    """An image that is the first frame."""
    audio: bool | None
    """Whether the video has sound."""
    polling: PollPolicy
    """The intervals between checks of the job."""


async def create_video(runtime: Runtime, prompt: str, model: Models, options: VideoOptions) -> VideoHandle:
    options = require_known(options, VideoOptions)
    calls = PlainCalls("video_create", runtime, model, options, _maker, lambda: (prompt,))
    first_frame = options.get("first_frame")
    frame = None if first_frame is None else image_block(first_frame)

    def request_to(named: Named, request_id: str) -> VideoRequest:
        return VideoRequest(
            model=f"{named.entry.adapter}:{named.entry.wire_name}",
            prompt=prompt,
            seconds=options.get("seconds"),
            size=options.get("size"),
            first_frame=frame,
            audio=options.get("audio"),
            **calls.basics(named.entry, request_id),
        )

    def check(adapter: VideoAdapter, named: Named) -> None:
        check_video(request_to(named, ""), adapter.get_video_capabilities(named.entry.wire_name))

    async def call(route: Route, request_id: str, caused_by: str | None) -> VideoHandle:
        named = route.option.named
        request = request_to(named, request_id)
        origin = JobOrigin(
            decision=route.decision,
            wire_model=named.entry.wire_name,
            priced_as=priced_as(runtime, named),
            tags=tags_here(options.get("tags")),
        )

        async def work(adapter: VideoAdapter, on_attempt: AttemptObserver) -> JobAnswer[VideoJob]:
            job = await adapter.create_video(request, on_attempt=on_attempt)
            return JobAnswer(job, job.model)

        def publish(created: JobAnswer[VideoJob]) -> None:
            runtime.bus.publish(_created(created.job, route), request_id=request_id, tags=origin.tags)

        most = [video_usage(request.terms)]
        created, _ = await calls.ask(
            route, request_id, caused_by, work, most=most, grace=GRACE_SECONDS, on_answer=publish
        )
        polling = options.get("polling", PollPolicy())
        return _shared_handle(runtime, VideoHandle(runtime, created.job, origin, request_id, polling))

    return await calls.run(lambda: calls.first_that_works(check, call))


def _created(job: VideoJob, route: Route) -> JobCreated:
    return JobCreated(
        job_id=job.id,
        kind="video",
        provider=job.provider,
        model=route.decision.model,
        status=job.status,
        seconds=job.terms.seconds,
        size=job.terms.size,
        audio=job.terms.audio,
        key=job.terms.key,
    )


async def resume_video(
    runtime: Runtime, job_id: str, model: str, overrides: VideoTerms, polling: PollPolicy
) -> VideoHandle:
    named = expand(runtime.registry, model, ()).named[0]
    entry = named.entry
    await runtime.host.start()
    runtime.pricing.notice()
    open_handle = _HANDLES[runtime].get((entry.adapter, job_id))
    if open_handle is not None:
        await open_handle.refresh()
        return open_handle
    _maker(runtime.adapters.consult(runtime.registry.adapter_of(entry)), named)
    stored = await stored_job(runtime, entry.adapter, job_id)
    terms = VideoTerms(
        stored.seconds if overrides.seconds is None else overrides.seconds,
        stored.size if overrides.size is None else overrides.size,
        stored.audio if overrides.audio is None else overrides.audio,
        overrides.key or stored.key,
    )
    origin = JobOrigin(
        decision=decision_of(named, model), wire_model=entry.wire_name, priced_as=priced_as(runtime, named)
    )
    job = VideoJob(id=job_id, model=origin.model, provider=entry.adapter, status="queued", terms=terms)
    handle = _shared_handle(runtime, VideoHandle(runtime, job, origin, stored.created_by, polling))
    await handle.refresh()
    return handle


_HANDLES: PerEngine[WeakValueDictionary[tuple[str, str], VideoHandle]] = PerEngine(WeakValueDictionary)
"""The handles that are in use, by provider and job."""


def _shared_handle(runtime: Runtime, handle: VideoHandle) -> VideoHandle:
    """The single handle of a job in this engine, so that the job's end is published once."""
    return _HANDLES[runtime].setdefault((handle.job.provider, handle.id), handle)


def _maker(adapter: ProviderAdapter, named: Named) -> VideoAdapter:
    if not isinstance(adapter, VideoAdapter):
        raise CapabilityError(f"{named.model} can't make videos: its adapter does not support them")
    return adapter

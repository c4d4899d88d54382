"""The handle of a video's job: wait for the job, look at it, download the video, end the job.

    running    the provider works on the job; each look may change its status
    done       the job is completed, has failed or was cancelled, and no look changes it any more
    told       its end was published, and the cost of a completed job was counted

`_end` leads from done to told, once. A second task that waits finds the job told.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, overload

import anyio
import msgspec

from callboard.adapters import AdapterError, RetryPolicy, TokenUsage
from callboard.adapters.actor import start_work
from callboard.adapters.contract import CallWarning, ProviderAdapter
from callboard.adapters.videos import (
    VideoAdapter,
    VideoJob,
    VideoStatus,
    VideoVariant,
    download_video,
    download_video_to,
    wait_for_video,
)
from callboard.bus import Cost, JobCompleted, JobFailed, JobProgress
from callboard.bus.errors import CancelledError, NotFoundError, RequestTimeoutError, StoreError
from callboard.bus.log import Log

from ..old_names import takes_old_names
from ..runtime.runtime import Runtime
from .job_call import JobCall, JobOrigin, stored_job

T = TypeVar("T")

OnProgress = Callable[[VideoJob], object]
OnBytes = Callable[[int, int | None], object]

_log = Log("engine.media")


class VideoResult(msgspec.Struct, frozen=True, kw_only=True):
    """A completed job."""

    job: VideoJob
    """The job as it was at its end."""
    usage: TokenUsage
    """The seconds of the video, as pieces."""
    cost: Cost
    """The cost. It is counted once, by whoever sees the job's end first."""


class VideoHandle:
    """A job at its provider. The job goes on without its handle, and `Engine.resume_video` makes another handle.

    Only `wait()` and `refresh()` look at the job. They publish events of its progress and of its end (`job.*`).
    The end is published once, and the cost of a completed job is counted once.
    """

    def __init__(self, runtime: Runtime, job: VideoJob, origin: JobOrigin) -> None:
        self._runtime = runtime
        self._job = job
        self._origin = origin
        self._cost: Cost | None = None
        self._told = False
        self._cancelling = False  # a job that is no longer to be found is then one that we have deleted
        self._looking = anyio.Lock()
        self._waiting = 0
        self._listeners: list[OnProgress] = []
        self._call = JobCall(runtime, origin)
        self._call.begin()

    @property
    def id(self) -> str:
        """The job's id at its provider, for `resume_video`."""
        return self._job.id

    @property
    def model(self) -> str:
        """The model that makes the video, as models.yaml or the caller names it, for `resume_video`."""
        return self._origin.decision.model

    @property
    def job(self) -> VideoJob:
        """The job as it was at the last look."""
        return self._job

    @property
    def status(self) -> VideoStatus:
        """The status at the last look."""
        return self._job.status

    @property
    def cost(self) -> Cost | None:
        """The cost; None before the job is completed."""
        return self._cost

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Warnings, such as parts of the request that the provider doesn't take."""
        return self._job.warnings

    # -- looking

    async def refresh(self) -> VideoJob:
        """Look at the job once. There is no look if the job is over, or if somebody waits for it and looks anyway.

        Raises:
            AdapterError: The look failed.
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

        Lost connections and faults of the provider are waited out, see `PollPolicy`. Whatever ends the wait, the
        job goes on.

        Args:
            on_progress: Is given the job at every look. Its exceptions are raised here.
            timeout: Seconds to wait; None is without end.

        Returns:
            The completed job. Its cost is counted in the trace by then.

        Raises:
            AdapterError: The job failed, or looking at it failed for good.
            CancelledError: The job was cancelled, or the engine was closed.
            RequestTimeoutError: The time is up.
        """
        limit = math.inf if timeout is None else timeout
        self._waiting += 1
        if on_progress is not None:
            self._listeners.append(on_progress)
        closed = f"the engine was closed, and video {self.id} goes on: {self._how_to_resume()}"
        try:
            with self._runtime.in_flight.call(closed), anyio.fail_after(limit):
                async with self._looking:
                    if not self._job.done:
                        await self._look_until_done()
                    await self._end()
        except TimeoutError as error:
            what = f"video {self.id} is {self.status} after {limit:g} s, and goes on: {self._how_to_resume()}"
            raise RequestTimeoutError(what, provider=self._job.provider) from error
        finally:
            self._waiting -= 1
            if on_progress is not None:
                self._listeners.remove(on_progress)
        return self._result()

    async def _look_until_done(self) -> None:
        try:
            await wait_for_video(
                self._retrieve,
                self._job,
                policy=self._origin.polling,
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

        async def look(adapter: VideoAdapter) -> VideoJob:
            return await adapter.retrieve_video(self.id, model=model, terms=terms)

        try:
            return await self._with_adapter(look)
        except AdapterError as error:
            if type(error) is AdapterError and error.provider_status is None:
                error.retryable = True  # the adapter crashed, and the next look finds another one
            raise

    def _see(self, job: VideoJob) -> None:
        if self._job.done:  # cancelled, while this look was under way
            return
        before, self._job = self._job, job
        if (before.status, before.progress) != (job.status, job.progress):
            changed = JobProgress(
                job_id=job.id,
                kind="video",
                provider=job.provider,
                model=self.model,
                status=job.status,
                progress=job.progress,
            )
            self._publish(changed)
        for listener in tuple(self._listeners):
            listener(job)

    # -- its end

    async def _end(self) -> None:
        """Publish the end and count the cost, if the job is over and that was not done before."""
        if not self._job.done or self._told:
            return
        job = self._job
        self._told = job.status != "completed"
        if self._told:
            self._fail(job)
            await self._call.secured()
            return
        counted = await self._counted_before()
        self._told = True
        if counted is not None:
            self._cost = counted
            return
        self._cost = self._call.completed_by(job)
        told = JobCompleted(
            job_id=job.id,
            kind="video",
            provider=job.provider,
            model=self.model,
            cost_nano_usd=self._cost.nano_usd,
            expires_at=job.expires_at,
        )
        self._publish(told)
        await self._call.secured()

    async def _counted_before(self) -> Cost | None:
        """The cost that another process, or an earlier handle, has counted."""
        try:
            return (await stored_job(self._runtime, self._job.provider, self.id)).counted
        except StoreError as error:
            _log.warning("it is not known whether a video was counted before", job_id=self.id, error=str(error))
            return None

    def _fail(self, job: VideoJob) -> None:
        error = self._error()
        self._call.failed_by(job, error)
        told = JobFailed(
            job_id=job.id,
            kind="video",
            provider=job.provider,
            model=self.model,
            status=job.status,
            error_type=type(error).__name__,
            message=str(error)[:2000],
        )
        self._publish(told)

    def _error(self) -> AdapterError:
        job = self._job
        if job.status == "cancelled":
            return CancelledError(f"video {self.id} was cancelled", provider=job.provider)
        return job.error or AdapterError(f"video {self.id} failed", provider=job.provider)

    def _result(self) -> VideoResult:
        if self._job.status != "completed":
            raise self._error()
        assert self._cost is not None
        return VideoResult(job=self._job, usage=self._job.usage or TokenUsage(), cost=self._cost)

    def _how_to_resume(self) -> str:
        return f"engine.resume_video({self.id!r}, {self.model!r})"

    # -- what it made

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
        """Download what a completed job made.

        A download that breaks off goes on where it broke, or begins again; see `adapters.videos`. It costs
        nothing, and may be done again as long as the provider keeps the video.

        Args:
            variant: ``video``, ``thumbnail`` or ``spritesheet``.
            to: The path of a file, which appears there when it is whole.
            on_progress: Is given the number of bytes so far, and the number of all bytes, or None if the server
                doesn't tell it.

        Returns:
            The bytes, or with `to` the path.

        Raises:
            InvalidRequestError: The job isn't completed.
            CapabilityError: The job has no such variant.
            AdapterError: The download failed.
            ConfigurationError: The job's adapter is gone.
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
                return error  # the file system's, and no crash of the adapter

        loaded = await self._with_adapter(load)
        if isinstance(loaded, OSError):
            raise loaded
        return loaded

    async def cancel(self) -> bool:
        """End the job as far as the provider can, whatever the provider then charges.

        The job is looked at first. A job that has been completed meanwhile is paid for, so it is counted, and it
        can still be downloaded.

        Returns:
            False if the job was over or unknown.

        Raises:
            CapabilityError: The provider can't end jobs.
            AdapterError: The provider can't be reached, or refuses. The job goes on.
        """
        if not await self._still_runs():
            return False

        async def end(adapter: VideoAdapter) -> bool:
            return await adapter.delete_video(self.id, model=self._origin.wire_model)

        self._cancelling = True
        try:
            deleted = await self._with_adapter(end)
        except BaseException:
            self._cancelling = False
            raise
        if not deleted:
            return False
        self._see_cancelled()
        await self._end()
        return True

    async def _still_runs(self) -> bool:
        """Whether there is anything to end. A look tells; a provider may not know a job yet that it has just
        created."""
        if not self._job.done:
            with contextlib.suppress(NotFoundError):
                if self._waiting:  # who then finds it done, and counts it
                    self._see(await self._retrieve())
                else:
                    await self.refresh()
        return not self._job.done

    def _see_cancelled(self) -> None:
        self._see(msgspec.structs.replace(self._job, status="cancelled"))

    # -- how

    async def _with_adapter(self, work: Callable[[VideoAdapter], Awaitable[T]]) -> T:
        """The result of work with the job's present adapter. An earlier one may have been replaced or have
        crashed."""

        async def on_it(adapter: ProviderAdapter) -> T:
            assert isinstance(adapter, VideoAdapter)
            return await work(adapter)

        with self._runtime.in_flight.call():
            running = await self._runtime.adapters.acquire(self._origin.decision.provider)
            try:
                handle = start_work(running.ref, self._runtime.clock.new_id("req"), on_it)
                try:
                    return await handle.wait()
                finally:
                    handle.kill()  # which does nothing if it is done
            finally:
                running.release()

    def _publish(self, event: JobProgress | JobCompleted | JobFailed) -> None:
        self._runtime.bus.publish(event, request_id=self._origin.created_by, tags=self._origin.tags)

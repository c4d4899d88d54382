"""The end of a video's job, published as a call of its own with the job's cost; the job's facts in the trace."""

from __future__ import annotations

import msgspec

from callboard.adapters import AdapterError, StopReason, TokenUsage
from callboard.adapters.contract import AttemptStarted, CallWarning
from callboard.adapters.videos import PollPolicy, VideoJob
from callboard.bus import Cost, RoutingDecision
from callboard.tracestore import StoredJob

from ..budgets.reservation_names import job_of
from ..calls.events import CallContext, CallEvents
from ..runtime.runtime import Runtime


class JobOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job comes from."""

    decision: RoutingDecision
    """The decision for the model that makes the video."""
    wire_model: str
    """The model's name at its provider."""
    created_by: str | None = None
    """The id of the request that created the job; None if it is unknown."""
    priced_as: str | None = None
    """The provider whose published prices the model has."""
    tags: dict[str, str] | None = None
    """The tags of the job's calls."""
    polling: PollPolicy = PollPolicy()
    """The policy for looking at the job."""


class JobCall(CallEvents):
    """The end of a job as a call. Its start and its end are published together; it has lasted since `begin`."""

    operation = "video"
    sends = False

    def __init__(self, runtime: Runtime, origin: JobOrigin) -> None:
        context = CallContext(
            runtime=runtime,
            request_id=runtime.clock.new_id("req"),
            routing=origin.decision,
            priced_as=origin.priced_as,
            caused_by=origin.created_by,
            tags=origin.tags,
        )
        super().__init__(context, streamed=False)

    def _reservation(self) -> str | None:
        created_by = self.context.caused_by
        return None if created_by is None else job_of(created_by)

    def completed_by(self, job: VideoJob) -> Cost:
        """Publish the end of a completed job.

        Returns:
            The job's cost under the prices that are in force now.
        """
        self.on_attempt(AttemptStarted(1, key=job.terms.key))
        usage = job.usage or TokenUsage()
        cost = self.price(usage, job.model)
        self.publish_end(self.completed(JobAsReply(job, usage), cost, StopReason.END_TURN))
        return cost

    def failed_by(self, job: VideoJob, error: AdapterError) -> None:
        """Publish the end of a failed job. It costs nothing, unless the error has a usage."""
        self.on_attempt(AttemptStarted(1, key=job.terms.key))
        self.publish_end(error)


class JobAsReply(msgspec.Struct, frozen=True):
    """A job as the answer of a call."""

    job: VideoJob
    """The job."""
    usage: TokenUsage
    """The usage that is counted with the call."""

    @property
    def model(self) -> str:
        return self.job.model

    @property
    def response_id(self) -> str | None:
        return self.job.id

    @property
    def provider_request_id(self) -> str | None:
        return self.job.provider_request_id

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        return self.job.warnings


async def stored_job(runtime: Runtime, provider: str, job_id: str) -> StoredJob:
    """The facts about a job in the trace.

    Raises:
        StoreError: The trace can't be read.
    """
    if runtime.store is None:
        return StoredJob()
    await runtime.host.settle()
    if not runtime.store.is_open:
        return StoredJob()
    return await runtime.store.job(provider, job_id)

"""What a video's job comes to, as a call of its own."""

from __future__ import annotations

import msgspec

from adapters import AdapterError, StopReason, TokenUsage
from adapters.contract import AttemptStarted, CallWarning
from adapters.videos import PollPolicy, VideoJob
from bus import Cost, RoutingDecision
from bus.errors import CancelledError

from ..calls.events import CallEvents, EventScene
from ..runtime.runtime import Runtime


class JobOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job besides itself. created_by: the request that created it, if that is known."""

    decision: RoutingDecision
    wire_model: str
    created_by: str | None = None
    priced_as: str | None = None
    tags: dict[str, str] | None = None
    polling: PollPolicy = PollPolicy()


class JobCall(CallEvents):
    """What a job came to, as a call: it starts and ends when that is known, and has lasted since `begin`."""

    operation = "video"

    def __init__(self, runtime: Runtime, origin: JobOrigin) -> None:
        scene = EventScene(
            bus=runtime.bus,
            clock=runtime.clock,
            prices=lambda: runtime.prices,
            routing=origin.decision,
            caused_by=origin.created_by,
            tags=origin.tags,
            priced_as=origin.priced_as,
            settle=runtime.middleware.settling,
            secure=runtime.host.secure,
        )
        super().__init__(scene, runtime.clock.new_id("req"), None, streamed=False)

    def completed_by(self, job: VideoJob) -> Cost:
        """Publish it, with its cost under the prices of now."""
        self.on_attempt(AttemptStarted(1))
        usage = job.usage or TokenUsage()
        cost = self.price(usage, job.model)
        terminal = self.completed(JobAsReply(job, usage), cost, StopReason.END_TURN)
        self.publish_terminal(terminal, CancelledError(""))
        return cost

    def failed_by(self, error: AdapterError) -> None:
        """Publish it; what failed costs nothing, unless the error has a usage."""
        self.on_attempt(AttemptStarted(1))
        self.publish_terminal(None, error)


class JobAsReply(msgspec.Struct, frozen=True):
    """A job as a call tells of it. usage: what is counted with that call."""

    job: VideoJob
    usage: TokenUsage

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

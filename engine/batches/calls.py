"""The calls of a batch: the creation of its jobs, and each result as a call of its own."""

from __future__ import annotations

import msgspec

from callboard.adapters import AdapterError, CanonicalResponse, StopReason, TokenUsage
from callboard.adapters.batches import BatchJob, BatchOutcome
from callboard.adapters.contract import AttemptStarted, CallWarning
from callboard.adapters.usage.unfinished import NOTHING_USED
from callboard.bus import Cost, CostSource, LlmCallFailed

from ..calls.events import CallContext, CallEvents
from ..runtime.runtime import Runtime
from .plan import BatchPlan

NOT_BILLED = Cost(0, CostSource.COMPUTED, None, "a batch's request that came to nothing is not billed")


class JobAsAnswer(msgspec.Struct, frozen=True):
    """A job as the answer to the call that creates it. What it costs, its results tell."""

    job: BatchJob
    """The job."""
    model: str
    """The model as ``provider:name``."""

    @property
    def usage(self) -> TokenUsage:
        return TokenUsage()

    @property
    def response_id(self) -> str | None:
        return self.job.id

    @property
    def provider_request_id(self) -> str | None:
        return self.job.provider_request_id

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        return self.job.warnings


class _BatchCall(CallEvents):
    """A call that is told when it is over. Its start and its end are published together."""

    sends = False

    def __init__(self, runtime: Runtime, plan: BatchPlan, request_id: str, caused_by: str | None) -> None:
        context = CallContext(
            runtime=runtime,
            request_id=request_id,
            routing=plan.decision,
            priced_as=plan.priced_as,
            caused_by=caused_by,
            tags=plan.tags,
        )
        super().__init__(context, streamed=False)

    def _reservation(self) -> str | None:
        return None  # the whole part has one, which is given back when all its results are counted


class FoundCreation(_BatchCall):
    """The creation of a job whose answer never came to the process that asked for it."""

    operation = "batch_create"

    def tell(self, found: JobAsAnswer, key: str | None) -> None:
        """Publish that the creation went well after all."""
        self.begin()
        self.on_attempt(AttemptStarted(1, key=key))
        self.publish_end(self.completed(found, NOT_BILLED, StopReason.END_TURN))


class ItemCall(_BatchCall):
    """One request of a batch as a call. It is priced at the moment at which its result is read."""

    operation = "batch"

    def tell(self, outcome: BatchOutcome, key: str | None) -> Cost | None:
        """Publish the end of the request.

        Returns:
            Its cost; None if that isn't known.
        """
        self.begin()
        self.on_attempt(AttemptStarted(1, key=key))
        if isinstance(outcome, CanonicalResponse):
            cost = self.price(outcome.usage, outcome.model)
            end = self.completed(outcome, cost, outcome.stop_reason, outcome.raw_stop_reason)
            self.publish_end(end)
            return cost
        self.publish_end(outcome)
        return outcome.cost

    def _failed(self, error: AdapterError, *, will_retry: bool, delay: float) -> LlmCallFailed:
        told = super()._failed(error, will_retry=will_retry, delay=delay)
        return msgspec.structs.replace(told, of_batch=True)

    def cost_of(self, usage: TokenUsage) -> Cost:
        return NOT_BILLED if usage is NOTHING_USED else self.price(usage)

    def account(self, error: AdapterError) -> None:
        """Leave the usage as the provider's results tell it."""

"""The common parts of jobs, for videos and batches. A job continues at its provider without this process.

submitting  one call creates the job. The start of the call is in the journal before the request is sent. The job's
            id follows as soon as it is known. A cancelled creation waits `GRACE_SECONDS` for that id.
running     only the job's handle checks it, with the provider's current adapter (`with_adapter`). An engine has
            one handle for each job.
over        the end is published as a separate call (`EndedCall`), priced when it is first seen. The trace is
            queried before that, so that an end published by another process is not counted again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from callboard.adapters import AdapterError, StopReason, TokenUsage
from callboard.adapters.actor import start_work
from callboard.adapters.batches import BatchJob
from callboard.adapters.contract import AttemptStarted
from callboard.adapters.videos import VideoJob
from callboard.bus import Cost, RoutingDecision
from callboard.bus.values.messages import CallWarning

from ..calls.call_context import CallContext
from ..calls.events import CallEvents, Served
from ..models.registry import published_name
from ..routing.candidates import Named
from ..runtime.runtime import Runtime

T = TypeVar("T")
J = TypeVar("J", bound=VideoJob | BatchJob)

GRACE_SECONDS = 10.0
"""Seconds that a cancelled creation waits for the job's id, so that the job isn't lost."""


class JobOrigin(msgspec.Struct, frozen=True, kw_only=True):
    decision: RoutingDecision
    wire_model: str
    priced_as: str | None
    """The provider whose published prices apply."""
    tags: dict[str, str] | None = None

    @property
    def model(self) -> str:
        """The model as ``provider:name``, by its name at the provider."""
        return f"{self.decision.provider}:{self.wire_model}"


def priced_as(runtime: Runtime, named: Named) -> str | None:
    """The provider whose published prices apply to a model."""
    return published_name(runtime.registry.adapter_of(named.entry), named.entry)


def decision_of(named: Named, requested: str) -> RoutingDecision:
    """The routing decision for a model without alternatives."""
    return RoutingDecision(
        requested=requested,
        model=named.model,
        provider=named.entry.adapter,
        resolved_by=named.resolved_by,
        candidates=(),
    )


class JobAnswer(msgspec.Struct, Generic[J], frozen=True):
    """A job as the answer of a call. The call that creates a job has no usage; the job's end has the usage."""

    job: J
    model: str
    """The model as ``provider:name``."""
    usage: TokenUsage = TokenUsage()

    @property
    def response_id(self) -> str | None:
        return self.job.id

    @property
    def provider_request_id(self) -> str | None:
        return self.job.provider_request_id

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        return self.job.warnings


class EndedCall(CallEvents):
    """A call without an adapter.

    Its start and its end are published together; its duration counts from `begin`.
    """

    sends = False

    def __init__(
        self, runtime: Runtime, operation: str, origin: JobOrigin, request_id: str, caused_by: str | None
    ) -> None:
        context = CallContext(
            runtime=runtime,
            request_id=request_id,
            routing=origin.decision,
            priced_as=origin.priced_as,
            caused_by=caused_by,
            tags=origin.tags,
        )
        super().__init__(context, streamed=False)
        self.operation = operation
        self.begin()

    def complete(
        self,
        answer: Served,
        key: str | None,
        cost: Cost | None = None,
        stop_reason: StopReason = StopReason.END_TURN,
        raw_stop_reason: str | None = None,
    ) -> Cost:
        """Publish a successful end. If no cost is passed, it is computed with the current prices."""
        self.on_attempt(AttemptStarted(1, key=key))
        cost = self.price(answer.usage, answer.model) if cost is None else cost
        self.publish_end(self.completed(answer, cost, stop_reason, raw_stop_reason))
        return cost

    def fail(self, error: AdapterError, key: str | None) -> None:
        """Publish a failed end. It costs nothing, unless the error has usage."""
        self.on_attempt(AttemptStarted(1, key=key))
        self.publish_end(error)


class PerEngine(Generic[T]):
    """One object for each engine. It is dropped when the engine is."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[Runtime, T] = WeakKeyDictionary()

    def __getitem__(self, runtime: Runtime) -> T:
        return self._made.setdefault(runtime, self._make())


async def with_adapter(runtime: Runtime, provider: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run a function with a provider's current adapter, and return its result.

    An earlier adapter may have been replaced or have crashed. The error of a crashed adapter is retryable, because
    the next try uses another adapter.
    """
    with runtime.in_flight.call():
        running = await runtime.adapters.acquire(provider)
        try:
            handle = start_work(running.ref, runtime.clock.new_id("req"), work)
            try:
                return await handle.wait()
            except AdapterError as error:
                if type(error) is AdapterError and error.provider_status is None:
                    error.retryable = True
                raise
            finally:
                handle.kill()
        finally:
            running.release()

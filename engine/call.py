"""One call: one request to one (provider, model), with all its attempts, and exactly one terminal event.

The adapter's actor reports attempts as they happen; this task alone publishes `llm.call_*`. Whatever ends the
call (a return, an error, a crash of the adapter, a cancellation, the engine's shutdown), one `finally` without an
`await` closes the stream's log and publishes the terminal that is still missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import msgspec

from adapters import (
    AdapterError,
    AttemptFailed,
    AttemptFirstEvent,
    AttemptReport,
    AttemptStarted,
    CallWarning,
    CanonicalRequest,
    CanonicalResponse,
    ContentBlock,
    MessageComplete,
    MessageStart,
    StopReason,
    StreamEvent,
    TokenUsage,
)
from adapters.actor import CallHandle, start_call
from bus import (
    ActorRef,
    Bus,
    Clock,
    Cost,
    CostSource,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RoutingDecision,
    StreamLog,
)
from bus.errors import CancelledError
from bus.stream_events import TurnEvent
from bus.usage import UsageSource
from tracestore import PriceTable

from .accumulator import StreamAccumulator, whole_reply_events
from .slots import CallSlots

CANCEL_GRACE_SECONDS = 5.0
"""How long an adapter may take to end a cancelled call in order, before the call is ended without it."""


EventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Sequence[StreamEvent]]
"""Given some events of a message, in order, the events to deliver in their place."""


class CallScene(msgspec.Struct, frozen=True, kw_only=True):
    """What a call needs besides its request.

    order: of its turn, who is first gets a slot first. prices: asked when an attempt starts. priced_as: whose
    published prices the model has, see `engine.published_prices`. deadline: when the
    call is cancelled of itself, in the event loop's time. drain_seconds: how long a cancelled call may be read on.
    filter: what the message's events go through before anybody sees them.
    """

    bus: Bus
    clock: Clock
    adapter: ActorRef
    limiter: CallSlots
    prices: Callable[[], PriceTable]
    routing: RoutingDecision
    log: StreamLog[TurnEvent]
    session_id: str | None = None
    turn_id: str | None = None
    caused_by: str | None = None
    tags: dict[str, str] | None = None
    estimated_input_tokens: int | None = None
    warnings: tuple[CallWarning, ...] = ()
    priced_as: str | None = None
    order: int = 0
    deadline: float = math.inf
    drain_seconds: float = 0.0
    filter: EventFilter | None = None


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended well: its response, and what that cost."""

    response: CanonicalResponse
    cost: Cost

    @property
    def text(self) -> str:
        return self.response.text

    @property
    def usage(self) -> TokenUsage:
        return self.response.usage


@dataclass(eq=False)
class Call:
    """The state of one call. Run it once; `cancel()` from anywhere on the same loop.

    failure_cost: of what a failed or cancelled call had used, if that is known.
    """

    request: CanonicalRequest
    scene: CallScene
    streamed: bool
    failure_cost: Cost | None = None
    _attempt: int = 0
    _attempt_open: bool = False
    _started_ns: int = 0
    _attempt_us: int = 0
    _first_token_ms: int | None = None
    _prices: PriceTable | None = None
    _cancelled: bool = False
    _waiting: anyio.CancelScope | None = None
    _filtered: tuple[ContentBlock, ...] | None = None
    _filter_error: Exception | None = None
    _over: bool = False

    def cancel(self) -> None:
        """Ask the call to end. Idempotent; `run()` then raises CancelledError."""
        self._cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> CallOutcome:
        """Raises AdapterError; CancelledError (ours) after `cancel()` or its deadline, with what had arrived."""
        self._started_ns = self.scene.clock.monotonic_ns()
        first_seq = self.scene.log.next_seq
        terminal: LlmCallCompleted | LlmCallFailed | None = None
        error: AdapterError = self._cancelled_error()
        try:
            response = await self._converse()
            if self.scene.warnings:
                warnings = (*self.scene.warnings, *response.warnings)
                response = msgspec.structs.replace(response, warnings=warnings)
            cost = self.price(response.usage, response.model)
            if response.stop_reason is StopReason.CANCELLED:
                error.content, error.usage = response.content, response.usage
                raise error
            terminal = self._completed(response, cost)
            return CallOutcome(response=response, cost=cost)
        except AdapterError as failure:
            error = failure
            if self._filter_error is not None:
                raise self._filter_error from None
            raise
        finally:
            self._over = True
            self._close_log(first_seq, error if terminal is None else None)
            self._publish_terminal(terminal, error)

    async def _converse(self) -> CanonicalResponse:
        if self._cancelled:
            raise self._cancelled_error()
        if not self.scene.limiter.try_acquire():
            await self._queue()
        try:
            sink = self._take_in if self.streamed else None
            handle = start_call(self.scene.adapter, self.request, sink, on_attempt=self._on_attempt)
            response = await self._response(handle)
        finally:
            self.scene.limiter.release()
        if not self.streamed and self.scene.filter is not None:
            self._through_filter(self.scene.filter, whole_reply_events(self.request.message_id, response))
        if self._filter_error is not None:
            error = self._cancelled_error()
            error.usage = response.usage  # paid for, whatever becomes of it
            raise error
        return response if self._filtered is None else msgspec.structs.replace(response, content=self._filtered)

    async def _queue(self) -> None:
        with anyio.CancelScope(deadline=self.scene.deadline) as self._waiting:
            await self.scene.limiter.acquire(self.scene.order)
        if self._waiting.cancelled_caught:
            raise self._cancelled_error()

    async def _response(self, handle: CallHandle) -> CanonicalResponse:
        """The adapter's response. Once cancelled, it has a grace to end the call in order; then it is left."""
        try:
            with anyio.CancelScope(deadline=self.scene.deadline) as self._waiting:
                if self._cancelled:  # while it got its slot
                    self._waiting.cancel()
                return await handle.wait()
            handle.cancel()
            with anyio.move_on_after(CANCEL_GRACE_SECONDS + self.scene.drain_seconds):
                return await handle.wait()
            raise self._cancelled_error()
        finally:
            handle.kill()  # which does nothing if it is done

    def _cancelled_error(self) -> CancelledError:
        return CancelledError("the call was cancelled", request_id=self.request.request_id)

    def _take_in(self, events: Sequence[StreamEvent]) -> None:
        if self._over or self._filter_error is not None:  # an adapter that ignores its cancelling may still send
            return
        if self.scene.filter is not None:
            events = self._through_filter(self.scene.filter, events)
        self.scene.log.extend(self._warned(events) if self.scene.warnings else events)

    def _warned(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """The same events, where a message begins with what is known to be amiss."""
        warnings = self.scene.warnings
        return [
            msgspec.structs.replace(event, warnings=warnings) if isinstance(event, MessageStart) else event
            for event in events
        ]

    def _through_filter(self, function: EventFilter, events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """What a filter raises ends the call; the adapter, in whose task this runs, is not at fault."""
        try:
            events = function(events)
        except Exception as error:
            self._filter_error = error
            self.cancel()
            return ()
        for event in events:
            if isinstance(event, MessageComplete):
                self._filtered = event.final_content
        return events

    # -- reports of the adapter, synchronous

    def _on_attempt(self, report: AttemptReport) -> None:
        if not self._over:
            self._note_attempt(report)

    def _note_attempt(self, report: AttemptReport) -> None:
        match report:
            case AttemptStarted():
                self._attempt, self._attempt_open = report.attempt, True
                self._attempt_us = self.scene.clock.now_us()
                self._prices = self.scene.prices()
                self._publish(self._started(report))
            case AttemptFirstEvent():
                if self._first_token_ms is None:
                    self._first_token_ms = self._elapsed_ms()
            case AttemptFailed():
                self._attempt_open = False
                self._publish(self._failed(report.error, will_retry=True, delay=report.delay_seconds))

    # -- events

    def _publish(self, event: LlmCallStarted | LlmCallCompleted | LlmCallFailed) -> None:
        scene = self.scene
        scene.bus.publish(
            event,
            session_id=scene.session_id,
            turn_id=scene.turn_id,
            request_id=self.request.request_id,
            attempt=self._attempt,
            message_id=self.request.message_id,
            caused_by=scene.caused_by,
            tags=scene.tags,
        )

    def _publish_terminal(self, terminal: LlmCallCompleted | LlmCallFailed | None, error: AdapterError) -> None:
        if terminal is None:
            terminal = self._failed(error, will_retry=False, delay=0.0)
        if self._attempt == 0:  # it never came to an attempt, yet every call has one start and one end
            self._note_attempt(AttemptStarted(1))
        if self._attempt_open:
            self._attempt_open = False
            self._publish(terminal)
        elif isinstance(terminal, LlmCallFailed):  # cancelled between two attempts: the next one is the last
            self._note_attempt(AttemptStarted(self._attempt + 1, "retry"))
            self._attempt_open = False
            self._publish(terminal)

    def _started(self, report: AttemptStarted) -> LlmCallStarted:
        routing = self.scene.routing
        return LlmCallStarted(
            provider=routing.provider,
            model=routing.model,
            requested_model=routing.requested,
            streamed=self.streamed,
            reason=report.reason,
            routing=routing if report.attempt == 1 else None,
            estimated_input_tokens=self.scene.estimated_input_tokens,
            priced_as=self.scene.priced_as,
        )

    def _completed(self, response: CanonicalResponse, cost: Cost) -> LlmCallCompleted:
        return LlmCallCompleted(
            provider=self.scene.routing.provider,
            model=self.scene.routing.model,
            served_model=response.model,
            stop_reason=response.stop_reason,
            raw_stop_reason=response.raw_stop_reason,
            usage=response.usage,
            cost=cost,
            latency_ms=self._elapsed_ms(),
            first_token_ms=self._first_token_ms,
            response_id=response.response_id,
            provider_request_id=response.provider_request_id,
            warnings=tuple(warning.code for warning in response.warnings),
        )

    def _failed(self, error: AdapterError, *, will_retry: bool, delay: float) -> LlmCallFailed:
        routing = self.scene.routing
        cost = self.price(error.usage) if error.usage is not None else None
        if not will_retry:
            self.failure_cost = cost
        return LlmCallFailed(
            provider=routing.provider,
            model=routing.model,
            error_class=error.error_class,
            error_type=type(error).__name__,
            message=str(error)[:2000],
            will_retry=will_retry,
            retry_count=max(self._attempt, 1) - 1,
            delay_seconds=delay,
            provider_status=error.provider_status,
            provider_code=error.provider_code,
            provider_request_id=error.provider_request_id,
            retry_after_seconds=error.retry_after_seconds,
            usage=error.usage,
            cost=cost,
            latency_ms=self._elapsed_ms(),
            first_token_ms=self._first_token_ms,
        )

    def price(self, usage: TokenUsage, served: str | None = None) -> Cost:
        """What the provider says it cost, else under the table in force when the attempt started.

        What that table gives is kept beside the provider's figure.
        """
        prices, scene = self._prices or self.scene.prices(), self.scene
        computed = prices.price(
            scene.routing.model, usage, self._attempt_us, served_model=served, priced_as=scene.priced_as
        )
        reported = usage.reported_cost_nano_usd
        if reported is None:
            return computed
        version, reason = computed.pricing_version, computed.reason
        return Cost(reported, CostSource.PROVIDER, version, reason, computed.nano_usd)

    def _elapsed_ms(self) -> int:
        return (self.scene.clock.monotonic_ns() - self._started_ns) // 1_000_000

    # -- the log

    def _close_log(self, first_seq: int, error: AdapterError | None) -> None:
        """Give the message the end that it lacks, if the call ended before the adapter could."""
        if error is None:
            return
        accumulator = StreamAccumulator()
        for event in self.scene.log.snapshot:  # of a stream so big that its first part is folded
            if getattr(event, "message_id", None) == self.request.message_id:
                accumulator.process(event)
        for event in self.scene.log.since(first_seq):
            accumulator.process(event)
        cancelled = isinstance(error, CancelledError)
        reason = StopReason.CANCELLED if cancelled else StopReason.ERROR
        usage = error.usage or TokenUsage(source=UsageSource.PARTIAL)
        for event in accumulator.closing_events(reason, usage):
            self.scene.log.append(event)
        if not error.content or self.scene.filter is not None:
            error.content = accumulator.content

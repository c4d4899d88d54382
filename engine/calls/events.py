"""What a call publishes: a start for each attempt, and exactly one end for each start, whatever its kind.

Shared by `call` (conversations) and `embedding`. Nothing here waits, so that a `finally` may use all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from adapters import (
    AdapterError,
    AttemptFailed,
    AttemptFirstEvent,
    AttemptReport,
    AttemptResent,
    AttemptStarted,
    CallWarning,
    StopReason,
    TokenUsage,
)
from adapters.usage.unfinished import NOTHING_USED, usage_of_failure
from bus import Bus, Clock, Cost, CostSource, LlmCallCompleted, LlmCallFailed, LlmCallStarted, RoutingDecision
from bus.errors import CancelledError
from bus.host_trace import current_trace
from bus.values.call_settings import CallSettings
from bus.values.cost_sum import CostSum, usage_is_unknown
from bus.values.usage import UsageSource
from tracestore import PriceTable

from .settings import settings_of


class WorstCase(msgspec.Struct, frozen=True):
    """The most that one attempt can have used: all that was sent, and as much output as was allowed.

    cost: of that usage, under the table in force at its start.
    """

    usage: TokenUsage
    cost: Cost


class CallInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which call it is. operation: chat, embeddings, image, video_create, or video, the end of a video's job.

    model: ``provider:name``. session_id: empty without one. Of a call that has ended, `failed_before` has the
    attempts that failed before its end, and `worst_case` the most that one of its attempts can have used, where
    what was used isn't known of all; None if nobody can tell.
    """

    operation: str
    model: str
    request_id: str
    session_id: str = ""
    failed_before: tuple[LlmCallFailed, ...] = ()
    worst_case: WorstCase | None = None


CallEnd: TypeAlias = LlmCallCompleted | LlmCallFailed
"""How a call ended, with what it used and what that cost."""

NOTHING_SENT = Cost(0, CostSource.COMPUTED, None, "nothing was sent")
NOT_KNOWN = Cost(None, CostSource.UNPRICED, None, "the call ended before any usage was known")


def cost_sum(end: CallEnd) -> CostSum:
    """What one attempt adds to a sum."""
    if isinstance(end, LlmCallCompleted):
        return CostSum.of_call(end.usage, end.cost)
    unknown = usage_is_unknown(end.error_class, end.provider_status)
    return CostSum.of_call(end.usage, end.cost, unknown=unknown)


def output_is_unknown(end: CallEnd) -> bool:
    """Whether nobody knows what an attempt had the model write: it failed, and nothing of a reply was heard."""
    if isinstance(end, LlmCallCompleted):
        return False
    if end.usage is None:
        return bool(cost_sum(end).unknown)
    sent = end.usage.total_input_tokens  # nothing, if it is known that nothing was sent
    return end.usage.source is UsageSource.ESTIMATED and sent > 0 and not end.usage.output_tokens


Settle: TypeAlias = Callable[[CallInfo, CallEnd], None]


class EventScene(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a call's events tell besides what happens in the call."""

    bus: Bus
    clock: Clock
    prices: Callable[[], PriceTable]
    """The table of new calls, asked for when an attempt starts."""
    routing: RoutingDecision
    session_id: str | None = None
    turn_id: str | None = None
    caused_by: str | None = None
    tags: dict[str, str] | None = None
    estimated_input_tokens: int | None = None
    priced_as: str | None = None
    """The provider whose published prices the model has, see `engine.models.published_prices`."""
    server: str | None = None
    """The address that is asked."""
    settle: Settle | None = None
    """A function that is told how the call ended."""
    secure: Callable[[], Awaitable[None]] | None = None
    """A function that returns when everything published survives the end of this process."""


class Served(Protocol):
    """A response of any kind, as far as its event tells of it."""

    @property
    def model(self) -> str: ...
    @property
    def usage(self) -> TokenUsage: ...
    @property
    def response_id(self) -> str | None: ...
    @property
    def provider_request_id(self) -> str | None: ...
    @property
    def warnings(self) -> tuple[CallWarning, ...]: ...


class CallEvents:
    """The events of one call. operation: what kind of call, in OpenTelemetry's word for it.

    costs: of all attempts that may have used something; usages: of those of which it is known; sum: of all that
    have ended. most_output: tokens that the model may write; None if there is no such limit. Nothing is heard of
    attempts once `over` is set. asked: the adapter was.
    """

    operation = "chat"
    most_output: int | None = 0

    def __init__(self, scene: EventScene, request_id: str, message_id: str | None, *, streamed: bool) -> None:
        self.costs: list[Cost] = []
        self.usages: list[TokenUsage] = []
        self.sum = CostSum()
        self.over = False
        self.asked = False
        self.streamed = streamed
        self._events = scene
        self._request_id = request_id
        self._message_id = message_id
        self._attempt = 0
        self._attempt_open = False
        self._resent = False
        self._started_ns = 0
        self._attempt_us = 0
        self._first_token_ms: int | None = None
        self._prices: PriceTable | None = None
        self._failed_before: list[LlmCallFailed] = []
        self._trace_parent = current_trace() if scene.turn_id is None else None  # else it is the turn's

    def begin(self) -> None:
        """The call's time counts from here."""
        self._started_ns = self._events.clock.monotonic_ns()

    # -- reports of the adapter, synchronous

    def on_attempt(self, report: AttemptReport) -> None:
        if not self.over:
            self._note_attempt(report)

    def _note_attempt(self, report: AttemptReport) -> None:
        match report:
            case AttemptStarted():
                self._attempt, self._attempt_open, self._resent = report.attempt, True, False
                self._attempt_us = self._events.clock.now_us()
                self._prices = self._events.prices()
                self._publish(self._started(report))
            case AttemptResent():
                self._resent = True
            case AttemptFirstEvent():
                if self._first_token_ms is None:
                    self._first_token_ms = self._elapsed_ms()
            case AttemptFailed():
                self._attempt_open = False
                failed = self._failed(report.error, will_retry=True, delay=report.delay_seconds)
                self._failed_before.append(failed)
                self._publish(failed)

    # -- events

    def _publish(self, event: LlmCallStarted | LlmCallCompleted | LlmCallFailed) -> None:
        if not isinstance(event, LlmCallStarted):
            self._count(event)
        scene = self._events
        scene.bus.publish(
            event,
            session_id=scene.session_id,
            turn_id=scene.turn_id,
            request_id=self._request_id,
            attempt=self._attempt,
            message_id=self._message_id,
            caused_by=scene.caused_by,
            tags=scene.tags,
        )

    def _count(self, end: CallEnd) -> None:
        part = cost_sum(end)
        self.sum += part
        if end.usage is not None:
            self.usages.append(end.usage)
        if part.unknown:
            self.costs.append(NOT_KNOWN)
        elif end.cost is not None and end.cost is not NOTHING_SENT:
            self.costs.append(end.cost)

    def publish_terminal(self, terminal: CallEnd | None, error: AdapterError) -> None:
        """The end that is missing, published and settled. terminal: None if the call failed, with this error."""
        if terminal is None:
            self.account(error)
            terminal = self._failed(error, will_retry=False, delay=0.0)
        if self._attempt == 0:  # it never came to an attempt, yet every call has one start and one end
            self._note_attempt(AttemptStarted(1))
            terminal = _unsent(terminal)
        if self._attempt_open:
            self._attempt_open = False
            self._publish(terminal)
        elif isinstance(terminal, LlmCallFailed):  # cancelled between two attempts: the next one is the last
            self._note_attempt(AttemptStarted(self._attempt + 1, "retry"))
            self._attempt_open = False
            terminal = _unsent(terminal)
            self._publish(terminal)
        self._settle(terminal)

    def _settle(self, terminal: CallEnd) -> None:
        scene = self._events
        if scene.settle is None:
            return
        known = not any(output_is_unknown(end) for end in (*self._failed_before, terminal))
        about = CallInfo(
            operation=self.operation,
            model=scene.routing.model,
            request_id=self._request_id,
            session_id=scene.session_id or "",
            failed_before=tuple(self._failed_before),
            worst_case=None if known else self._worst_case(),
        )
        scene.settle(about, terminal)

    def _worst_case(self) -> WorstCase | None:
        sent = self._events.estimated_input_tokens
        if sent is None or self.most_output is None:
            return None
        usage = TokenUsage(sent, self.most_output, source=UsageSource.ESTIMATED)
        return WorstCase(usage, self.price(usage))

    async def secured(self) -> None:
        """Return when the end survives the end of this process, as far as it can. Before it is handed over."""
        if self._events.secure is not None:
            await self._events.secure()

    @property
    def under_way(self) -> bool:
        """Whether an attempt is. Some adapters don't tell of theirs."""
        return self._attempt_open or (self.asked and not self._attempt)

    def account(self, error: AdapterError) -> None:
        """Put on an error what the call had used, where the adapter has not said it."""
        if error.usage is None and self.under_way:
            error.usage = usage_of_failure(error, self.used, heard=False)
        elif error.usage is None and isinstance(error, CancelledError):  # it waited, for a slot or a new attempt
            error.usage = NOTHING_USED

    def used(self) -> TokenUsage | None:
        """What the current attempt has used, if it ended here and the provider worked on it; None if not known."""
        estimate = self._events.estimated_input_tokens
        return None if estimate is None else TokenUsage(estimate, source=UsageSource.ESTIMATED)

    def _started(self, report: AttemptStarted) -> LlmCallStarted:
        routing = self._events.routing
        return LlmCallStarted(
            provider=routing.provider,
            model=routing.model,
            requested_model=routing.requested,
            streamed=self.streamed,
            operation=self.operation,
            reason=report.reason,
            routing=routing if report.attempt == 1 else None,
            estimated_input_tokens=self._events.estimated_input_tokens,
            priced_as=self._events.priced_as,
            settings=self.settings(),
            trace_parent=self._trace_parent,
        )

    def settings(self) -> CallSettings | None:
        """What it is sent with."""
        return settings_of(self._events.server)

    def completed(
        self, response: Served, cost: Cost, stop_reason: StopReason, raw_stop_reason: str | None = None
    ) -> LlmCallCompleted:
        return LlmCallCompleted(
            provider=self._events.routing.provider,
            model=self._events.routing.model,
            served_model=response.model,
            stop_reason=stop_reason,
            raw_stop_reason=raw_stop_reason,
            usage=response.usage,
            cost=cost,
            latency_ms=self._elapsed_ms(),
            first_token_ms=self._first_token_ms,
            response_id=response.response_id,
            provider_request_id=response.provider_request_id,
            warnings=tuple(str(warning.code) for warning in response.warnings),
            resent=self._resent,
        )

    def _failed(self, error: AdapterError, *, will_retry: bool, delay: float) -> LlmCallFailed:
        routing = self._events.routing
        if error.usage is not None:
            error.cost = self.cost_of(error.usage)
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
            usage=None if error.usage is NOTHING_USED else error.usage,
            cost=error.cost,
            latency_ms=self._elapsed_ms(),
            first_token_ms=self._first_token_ms,
            resent=self._resent,
        )

    def cost_of(self, usage: TokenUsage) -> Cost:
        """What an attempt cost that used so much; what was never sent needs no price."""
        return NOTHING_SENT if usage is NOTHING_USED else self.price(usage)

    def price(self, usage: TokenUsage, served: str | None = None) -> Cost:
        """What the provider says it cost, else under the table in force when the attempt started.

        What that table gives is kept beside the provider's figure.
        """
        prices, scene = self._prices or self._events.prices(), self._events
        computed = prices.price(
            scene.routing.model, usage, self._attempt_us, served_model=served, priced_as=scene.priced_as
        )
        reported = usage.reported_cost_nano_usd
        if reported is None:
            return computed
        version, reason = computed.pricing_version, computed.reason
        return Cost(reported, CostSource.PROVIDER, version, reason, computed.nano_usd)

    def _elapsed_ms(self) -> int:
        return (self._events.clock.monotonic_ns() - self._started_ns) // 1_000_000


def _unsent(end: CallEnd) -> CallEnd:
    """An attempt that was never made: it cost nothing, and that is known."""
    if isinstance(end, LlmCallCompleted) or end.usage is not None:
        return end
    return msgspec.structs.replace(end, cost=NOTHING_SENT)

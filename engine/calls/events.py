"""A call of any kind: its waits and its events.

Before anything is sent, a call waits for room in budgets and rate limits, and for a slot. Each attempt then
publishes a start and exactly one end. Publishing never waits, so a `finally` block may publish.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from callboard.adapters import (
    AdapterError,
    AttemptAccepted,
    AttemptFailed,
    AttemptFirstEvent,
    AttemptReport,
    AttemptResent,
    AttemptStarted,
    CallWarning,
    NextAttempt,
    StopReason,
    TokenUsage,
)
from callboard.adapters.actor import AdapterActor
from callboard.adapters.replies.usage import NOTHING_USED, usage_of_failure
from callboard.adapters.requests.estimate import upper_end
from callboard.bus import (
    CallContent,
    Cost,
    CostSource,
    LlmCallAccepted,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallGuarded,
    LlmCallStarted,
)
from callboard.bus.errors import CancelledError
from callboard.bus.events.calls import current_trace
from callboard.bus.values.messages import CallSettings
from callboard.bus.values.usage import UsageSource
from callboard.tracestore import PriceTable

from ..budgets.budget import Payer
from ..budgets.budgets import job_of, reservation
from ..budgets.ledger import Amount
from ..budgets.worst_case import Priced
from ..middleware.chain import Judged
from ..routing.rate_limits import RateLimitLease
from ..runtime.adapters import CallSlots, RunningAdapter
from ..tree import caller_here
from .outcome import (
    NOTHING_SENT,
    CallEnd,
    CallInfo,
    WorstCase,
    cost_sum,
    cost_without_usage,
    output_is_unknown,
)
from .preparation import CallContext, payer_of, place_below, server_of, settings_of


class Served(Protocol):
    """The fields of any response that the event of the call's end contains."""

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


_CREATING_JOBS = frozenset({"video_create", "batch_create"})
"""Operations that create jobs. Their reservation is kept until the job's own end."""


class CallEvents:
    operation = "chat"
    """The kind of call, as an OpenTelemetry operation name."""
    sends = True
    """Whether an attempt sends a request. False for calls that only record the end of a job."""
    most_output: int | None = 0
    """The maximum number of output tokens; None without a limit."""
    began_us: int | None = None
    """When the call started, in microseconds since the Unix epoch, if another process started it."""
    attempts_before = 0
    """The number of attempts that another process made before this one resumed the call."""
    on_accepted: Callable[[bool], object] | None = None
    """A function that is called when the provider accepts a background reply.

    It receives True before the acceptance is published, and False if that attempt fails and another follows.
    """
    accepted = False
    """Whether the provider continues the reply even if no process reads it."""
    reserved: Amount | None = None
    """The maximum cost of each attempt, once it is reserved; None without budgets."""
    _failed_before: tuple[LlmCallFailed, ...] = ()
    _key: str | None = None
    _trace_parent: str | None = None
    _resent = False
    _recorded_ahead = False
    _last_error: AdapterError | None = None
    _prices: PriceTable | None = None
    _lease: RateLimitLease | None = None

    def __init__(self, context: CallContext, *, streamed: bool) -> None:
        self.context = context
        self.streamed = streamed
        self.over = False
        """Whether the call has ended. Reports of attempts are ignored from then on."""
        self.requested = False
        self._server = server_of(context.running)
        self._attempt = 0
        self._attempt_open = False
        self._started_ns = 0
        self._attempt_us = 0
        self._first_token_ms: int | None = None
        self.caller = context.caller
        if context.turn_id is None:  # with a turn, both come from the turn
            self._trace_parent = current_trace()
            if (caller := caller_here()) is not None:
                self.caller = caller
                self._trace_parent = self._trace_parent or caller.trace_parent

    @property
    def attempt(self) -> int:
        """The number of the attempt in progress, from 1; 0 before the first."""
        return self._attempt

    @property
    def first_token_ms(self) -> int | None:
        """Milliseconds from the start of the call to its first content; None before it."""
        return self._first_token_ms

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the start of the call; 0 before it."""
        return self._elapsed_ms() if self._started_ns else 0

    def begin(self) -> None:
        self._started_ns = self.context.runtime.clock.monotonic_ns()

    # --- Before sending ---

    async def reserve(self, most: Callable[[Priced], Amount]) -> None:
        """Reserve the maximum cost of the first attempt. If a budget refuses, nothing is published.

        Raises BudgetExceededError.
        """
        context = self.context
        runtime = context.runtime
        node = context.node
        if self.caller is not None and context.turn_id is None:
            self.caller.require()
            node = self.caller.node
            node.admit_call(levels=1)
        elif node is not None:
            node.admit_call()
        if node is not None and (remote := node.remote or node.remote_above) is not None:
            await remote.announced()
        if not runtime.budgets and (node is None or not node.accounts):
            return
        try:
            await self._reserve(most)
        except BaseException:
            if node is not None:
                node.take_back_call()
            raise

    async def _reserve(self, most: Callable[[Priced], Amount]) -> None:
        context = self.context
        runtime = context.runtime
        priced = Priced(runtime.prices, context.routing.model, runtime.clock.now_us(), context.priced_as)
        name, worst_case = reservation(context.request_id, 1), most(priced)
        if not runtime.budgets.reserve_now(name, self.payer, worst_case):
            await self._patiently(lambda: runtime.budgets.reserve(name, self.payer, worst_case))
        self.reserved = worst_case

    async def _slot_and_turn(self, running: RunningAdapter) -> CallSlots:
        """Wait for a slot and for room in the rate limits at the same time. The slot must be released."""
        slots = running.slots
        lease = self._lease = self._new_lease(running)
        has_turn = lease.ask()
        while True:
            if not has_turn:
                await self._wait_for_turn(lease, running)
            if not slots.try_acquire():
                await self._patiently(lambda: slots.acquire(self.context.order))
            if lease.send():
                break
            slots.release()
            has_turn = False
        try:
            self._record_for_silent(running)
        except BaseException:
            slots.release()
            raise
        return slots

    def _record_for_silent(self, running: RunningAdapter) -> None:
        """If the adapter may not report its attempts, record the start of the first attempt now."""
        actor = running.ref.actor
        if isinstance(actor, AdapterActor) and not getattr(actor.made, "reports_attempts", False):
            self._note_attempt(AttemptStarted(1))
            self._recorded_ahead = True
            self.context.runtime.host.secure_now()

    async def _patiently(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait for a slot, for rate limits, or for room in the budgets. A subclass may end the wait early."""
        await wait()

    def _time_left(self, running: RunningAdapter) -> float:
        return running.entry.config.timeout_seconds

    def _new_lease(self, running: RunningAdapter) -> RateLimitLease:
        context = self.context
        most = upper_end(context.estimated_input_tokens or 0), self.most_output or 0
        limits = context.runtime.rate_limits
        return limits.lease(running.entry, context.key or "", context.routing.model, context.order, most)

    async def _wait_for_turn(self, lease: RateLimitLease, running: RunningAdapter) -> None:
        """Wait until the rate limits have room.

        Raises RateLimitWaitError if the wait would be too long, or if another allowed model has room now.
        """
        limits, key = self.context.runtime.rate_limits, self.context.key or ""
        if any(limits.is_free(model.partition(":")[0], model, key) for model in self.context.spills_to):
            lease.give_up()
        else:
            await self._patiently(lambda: lease.wait(self._time_left(running)))

    def cancelled_error(self) -> CancelledError:
        return CancelledError("the call was cancelled", request_id=self.context.request_id)

    # --- Reports of the adapter (synchronous) ---

    def on_attempt(self, report: AttemptReport) -> NextAttempt | None:
        """Record an adapter's report of an attempt. Returns the reports that wait for the next attempt.

        Raises AdapterError.
        """
        if self.over:
            return None
        if isinstance(report, AttemptStarted) and self._recorded_ahead:
            self._recorded_ahead = False
            self._key = report.key
            return None if self._lease is None else self._lease.report(report)
        if self.attempts_before:
            report = msgspec.structs.replace(report, attempt=report.attempt + self.attempts_before)
        if (
            isinstance(report, AttemptStarted)
            and self._last_error is not None
            and not self._affords(report.attempt)
        ):
            self._last_error.retryable = False  # because the budgets have no room for a retry
            raise self._last_error
        self._note_attempt(report)
        if self.sends and isinstance(report, AttemptStarted):
            # The adapter sends the request next. If this process dies then, the call must still have a row.
            self.context.runtime.host.secure_now()
        return None if self._lease is None else self._lease.report(report)

    def _reservation(self) -> str | None:
        """The name of the current attempt's reservation; None if nothing is reserved."""
        return None if self.reserved is None else reservation(self.context.request_id, self._attempt)

    def _affords(self, attempt: int) -> bool:
        """Reserve another attempt. Returns whether the budgets have room."""
        if self.reserved is None:
            return True
        name = reservation(self.context.request_id, attempt)
        return self.context.runtime.budgets.reserve_now(name, self.payer, self.reserved)

    def _note_attempt(self, report: AttemptReport) -> None:
        match report:
            case AttemptStarted():
                self._attempt, self._attempt_open, self._resent = report.attempt, True, False
                self._key = report.key
                self._attempt_us = self.began_us or self.context.runtime.clock.now_us()
                self._prices = self.context.runtime.prices
                self._publish(self._started(report))
            case AttemptResent():
                self._resent = True
            case AttemptAccepted():
                self._accept(report)
            case AttemptFirstEvent():
                if self._first_token_ms is None:
                    self._first_token_ms = self._elapsed_ms()
            case AttemptFailed():
                self._attempt_open = False
                failed = self._failed(report.error, will_retry=True, delay=report.delay_seconds)
                self._failed_before += (failed,)
                self._last_error = report.error
                self._publish(failed)
                if self.accepted:
                    self.accepted = False
                    if self.on_accepted is not None:
                        self.on_accepted(False)

    def _accept(self, report: AttemptAccepted) -> None:
        """Record the id by which another process can continue the reply."""
        self.accepted = True
        if self.on_accepted is not None:
            self.on_accepted(True)
        routing = self.context.routing
        accepted = LlmCallAccepted(provider=routing.provider, model=routing.model, response_id=report.response_id)
        self._publish_between(accepted, report.attempt)
        self.context.runtime.host.secure_now()

    def _publish_judged(self, judged: Judged) -> None:
        """Publish that a guardrail has changed or stopped a piece of the reply."""
        routing = self.context.routing
        self._publish_between(
            LlmCallGuarded(provider=routing.provider, model=routing.model, **msgspec.structs.asdict(judged))
        )

    def _publish_between(self, event: LlmCallAccepted | LlmCallGuarded, attempt: int | None = None) -> None:
        """Publish an event between the start of an attempt and its end."""
        context = self.context
        context.runtime.bus.publish(
            event,
            session_id=context.session_id,
            turn_id=context.turn_id,
            request_id=context.request_id,
            attempt=attempt,
            message_id=context.message_id,
            tags=context.tags,
        )

    # --- Events ---

    def _publish(self, event: LlmCallStarted | LlmCallCompleted | LlmCallFailed) -> None:
        context = self.context
        runtime = context.runtime
        if not isinstance(event, LlmCallStarted):
            part = context.spending.count(event) if context.spending is not None else cost_sum(event)
            if self.caller is not None and self.caller.counted is not None:
                self.caller.counted.count(part, event.usage)
        seq = runtime.bus.publish(
            event,
            session_id=context.session_id,
            turn_id=context.turn_id,
            request_id=context.request_id,
            attempt=self._attempt,
            message_id=context.message_id,
            caused_by=context.caused_by,
            tags=context.tags,
        )
        if isinstance(event, LlmCallStarted):
            return
        if runtime.budgets or self.reserved is not None:
            name = self._reservation()
            if self.operation in _CREATING_JOBS and isinstance(event, LlmCallCompleted):
                runtime.budgets.keep(name, job_of(context.request_id))  # the job's end has the cost
            else:
                runtime.budgets.settle(name, self.payer, event, seq)
        now_us = runtime.clock.now_us()
        for change in runtime.availability.observe(event, now_us, request_id=context.request_id):
            runtime.bus.publish(change)

    @functools.cached_property
    def payer(self) -> Payer:
        """The session, turn and tags that select the budgets."""
        context = self.context
        node = context.node
        if node is None and context.turn_id is None and self.caller is not None:
            node = self.caller.node
        return payer_of(
            context.routing.model, context.session_id, context.tags, context.turn_id or context.request_id, node
        )

    def publish_end(self, end: CallEnd | AdapterError) -> None:
        """Publish and settle the end of the call that is still missing, from an event or an error."""
        if isinstance(end, AdapterError):
            self.account(end)
        terminal = self._failed(end, will_retry=False, delay=0.0) if isinstance(end, AdapterError) else end
        if self._attempt == 0:  # no attempt was made, but every call has one start and one end
            self._note_attempt(AttemptStarted(1))
            terminal = _unsent(terminal)
        if self._attempt_open:
            self._attempt_open = False
            self._publish(terminal)
        # cancelled between two attempts, so the next attempt is the last one
        elif isinstance(terminal, LlmCallFailed):
            self._note_attempt(AttemptStarted(self._attempt + 1, "retry"))
            self._attempt_open = False
            terminal = _unsent(terminal)
            if end is self._last_error:  # The error's usage is already recorded for the earlier attempt.
                terminal = msgspec.structs.replace(terminal, usage=None, cost=NOTHING_SENT)
            self._publish(terminal)
        if self._lease is not None:
            self._lease.end(end if isinstance(end, AdapterError) else None, terminal.usage)
        self._settle(terminal)
        if self.context.turn_id is None and self.context.runtime.budgets:
            self.context.runtime.budgets.forget_turn(self.context.request_id)

    def leave_open(self, error: AdapterError) -> None:
        """End without publishing an end: the provider continues the reply, and a later process publishes its
        end.
        """
        self._attempt_open = False
        if self._lease is not None:
            self._lease.end(error, None)

    def _settle(self, terminal: CallEnd) -> None:
        context, middleware = self.context, self.context.runtime.middleware
        if not middleware:
            return
        is_known = not any(output_is_unknown(end) for end in (*self._failed_before, terminal))
        about = CallInfo(
            operation=self.operation,
            model=context.routing.model,
            request_id=context.request_id,
            session_id=context.session_id or "",
            failed_before=self._failed_before,
            worst_case=None if is_known else self._worst_case(),
        )
        middleware.settle(about, terminal)

    def _worst_case(self) -> WorstCase | None:
        sent = self.context.estimated_input_tokens
        if sent is None or self.most_output is None:
            return None
        usage = TokenUsage(sent, self.most_output, source=UsageSource.ESTIMATED)
        return WorstCase(usage, self.price(usage))

    async def secured(self) -> None:
        """Wait until the published end is safe from a crash of this process, if the store can ensure this."""
        await self.context.runtime.host.secure(self.context.turn_id)

    @property
    def in_progress(self) -> bool:
        """Whether an attempt is in progress. Some adapters don't report their attempts."""
        return self._attempt_open or (self.requested and not self._attempt)

    def account(self, error: AdapterError) -> None:
        """Set the usage of the call on its error, unless the adapter has set it."""
        if error.usage is None and self.in_progress:
            error.usage = usage_of_failure(error, self.used, received=False)
        # The call was waiting for a slot or a new attempt.
        elif error.usage is None and isinstance(error, CancelledError):
            error.usage = NOTHING_USED

    def used(self) -> TokenUsage | None:
        """The usage of the current attempt, as if the attempt ended now; None if unknown."""
        estimate = self.context.estimated_input_tokens
        return None if estimate is None else TokenUsage(estimate, source=UsageSource.ESTIMATED)

    def _started(self, report: AttemptStarted) -> LlmCallStarted:
        routing = self.context.routing
        started = LlmCallStarted(
            provider=routing.provider,
            model=routing.model,
            requested_model=routing.requested,
            streamed=self.streamed,
            operation=self.operation,
            reason=report.reason,
            routing=routing if report.attempt == 1 else None,
            estimated_input_tokens=self.context.estimated_input_tokens,
            priced_as=self.context.priced_as,
            settings=self.settings(),
            trace_parent=self._trace_parent,
            reserved_nano_usd=None if self.reserved is None else self.reserved.nano_usd,
            reserved_tokens=None if self.reserved is None else self.reserved.tokens,
            key=report.key,
        )
        if self.caller is not None:
            started = msgspec.structs.replace(started, **place_below(self.caller))
        content = self.content()
        return started if content is None else started.with_content(content)

    def content(self) -> CallContent | None:
        """The content of the request, for observers in this process; None if the call is not a conversation."""
        return None

    def settings(self) -> CallSettings | None:
        return settings_of(self._server)

    def completed(
        self, response: Served, cost: Cost, stop_reason: StopReason, raw_stop_reason: str | None = None
    ) -> LlmCallCompleted:
        """The event of a call that ended normally."""
        return LlmCallCompleted(
            provider=self.context.routing.provider,
            model=self.context.routing.model,
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
        routing = self.context.routing
        cost = None if error.usage is None else self.cost_of(error.usage)
        error.cost = cost_without_usage(error) if cost is None else cost
        failed = LlmCallFailed(
            provider=routing.provider,
            model=routing.model,
            error_class=error.error_class,
            error_type=type(error).__name__,
            message=self._published(str(error)[:2000]),
            will_retry=will_retry,
            retry_count=max(self._attempt, 1) - 1,
            delay_seconds=delay,
            provider_status=error.provider_status,
            provider_code=error.provider_code,
            provider_request_id=error.provider_request_id,
            retry_after_seconds=error.retry_after_seconds,
            usage=None if error.usage is NOTHING_USED else error.usage,
            cost=cost,
            latency_ms=self._elapsed_ms(),
            first_token_ms=self._first_token_ms,
            resent=self._resent,
            key=self._key,
        )
        return failed.with_reply(error.content) if error.content else failed

    def _published(self, text: str) -> str:
        """The text of an error for publication, without quotes of the request."""
        return text

    def cost_of(self, usage: TokenUsage) -> Cost:
        """The cost of an attempt with this usage. An attempt that was never sent needs no price."""
        return NOTHING_SENT if usage is NOTHING_USED else self.price(usage)

    def price(self, usage: TokenUsage, served: str | None = None) -> Cost:
        """The cost of a usage: as reported by the provider. Otherwise, the cost by the prices at the attempt's
        start.

        If the provider reports a cost, the computed cost is also stored.
        """
        context = self.context
        prices = context.runtime.prices if self._prices is None else self._prices
        computed = prices.price(
            context.routing.model, usage, self._attempt_us, served_model=served, priced_as=context.priced_as
        )
        reported = usage.reported_cost_nano_usd
        if reported is None:
            return computed
        version, reason = computed.pricing_version, computed.reason
        return Cost(reported, CostSource.PROVIDER, version, reason, computed.nano_usd)

    def _elapsed_ms(self) -> int:
        return (self.context.runtime.clock.monotonic_ns() - self._started_ns) // 1_000_000


def _unsent(end: CallEnd) -> CallEnd:
    """The end of an attempt that was never made. Its cost is zero."""
    if isinstance(end, LlmCallCompleted) or end.usage is not None:
        return end
    return msgspec.structs.replace(end, cost=NOTHING_SENT)

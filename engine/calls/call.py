"""A call of a conversation: one request to one model, with all its attempts and exactly one end.

    waiting    for room in budgets and rate limits, and for a slot
    asking     the adapter works, and reports each attempt and each event
    ending     the end of the message and the end of the call are published
    over       nothing is published any more

A call may end by a return, an error, a crash of the adapter, a cancellation or the engine's shutdown. In each
case, one `finally` block without an `await` publishes the end. Only the call publishes `llm.call_*` events; the
adapter's actor reports its attempts to the call.

The end of a stream is delivered only after all published events are safe from a crash of this process. Without a
stream, the turn waits for this before it returns.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import msgspec

from callboard.adapters import (
    AdapterError,
    CallWarning,
    CanonicalRequest,
    CanonicalResponse,
    ContentBlock,
    Message,
    MessageComplete,
    MessageStart,
    Role,
    StopReason,
    StreamEvent,
    TokenUsage,
)
from callboard.adapters.actor import AdapterActor, CallHandle, start_call
from callboard.adapters.contract import MeteredAdapter, ProviderAdapter, SendsClientRequests
from callboard.adapters.replies.usage import NOTHING_USED
from callboard.adapters.replies.whole import whole_events
from callboard.bus import CallContent, LlmCallCompleted, StreamLog
from callboard.bus.errors import CancelledError, WarningCode
from callboard.bus.streams.events import TurnEvent
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import CallSettings, is_empty, with_whole_calls
from callboard.bus.values.usage import UsageSource

from ..budgets.ledger import Amount
from ..budgets.worst_case import Priced, most_output, most_output_of_body, tiers_of, tool_fees, worst_case_of_reply
from ..generation.view_events import StreamAccumulator
from ..middleware.chain import Filtering
from ..runtime.adapters import RunningAdapter
from .events import CallEvents
from .outcome import CallOutcome, texts_of, without_quotes
from .preparation import CallContext, settings_of

CANCEL_GRACE_SECONDS = 5.0
"""Seconds that an adapter may take to end a cancelled call. After that, the call ends without the adapter."""


class Call(CallEvents):
    """One call of a conversation. Run it once; `cancel()` may be called anywhere on the same event loop.

    A cancelled call that waits leaves the queue. If the adapter is already working, its `cancel` is called. After
    a grace period, the call ends without the adapter.
    """

    # Rarely used attributes are class attributes: Python stores instances with up to thirty attributes compactly.
    abandoned = False
    """Whether the call has ended here while the provider continues the reply in the background."""
    _unlimited = False
    """Whether a client's own body is sent, with a higher output limit than the request's."""
    _cancelled = False
    _ending = False
    _filtering: Filtering | None = None
    _queueing: anyio.CancelScope | None = None  # while the call waits for a slot
    _telling: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _content: tuple[ContentBlock, ...] = ()

    def _published(self, text: str) -> str:
        if self.context.runtime.keeps_all_content:
            return text
        return without_quotes(text, texts_of(self.request.messages, self.request.system_prompt))

    def __init__(
        self,
        request: CanonicalRequest,
        context: CallContext,
        log: StreamLog[TurnEvent],
        *,
        streamed: bool,
        warnings: tuple[CallWarning, ...] = (),
        deadline: float = math.inf,
        drain_seconds: float = 0.0,
    ) -> None:
        super().__init__(context, streamed=streamed)
        assert context.running is not None
        self._running: RunningAdapter = context.running
        self.request = request
        self.most_output = request.max_output_tokens
        if request.wire is not None:
            self.most_output = _most_of_wire(self._running, request, request.wire.body)
            self._unlimited = request.default_output_limit and self.most_output > request.max_output_tokens
        elif request.provider_options:
            entry, options = self._running.entry, request.provider_options
            self.most_output = most_output(self.most_output, options, adapter=entry.name, adapter_type=entry.type)
        self._log = log
        self._warnings = warnings
        self._deadline = deadline
        self._grace = CANCEL_GRACE_SECONDS + drain_seconds
        middleware = context.runtime.middleware
        function = middleware.filter(request, self._publish_judged) if middleware else None
        if function is not None:
            self._filtering = Filtering(function, self._deliver, self.cancel)
            if request.wire is not None:  # only the canonical reply is filtered
                wire = msgspec.structs.replace(request.wire, on_event=None)
                self.request = msgspec.structs.replace(request, wire=wire)
        self._handle: CallHandle[CanonicalResponse] | None = None  # while the adapter works
        self._end: list[StreamEvent] = []  # the events of the message's end, until readers may receive them

    def settings(self) -> CallSettings | None:
        return settings_of(self._server, self.request)

    def content(self) -> CallContent:
        request = self.request
        return CallContent(messages=request.messages, system_prompt=request.system_prompt, tools=request.tools)

    def cancel(self) -> None:
        """Cancel the call; `run()` then raises CancelledError. A second call does nothing."""
        self._cancelled = True
        if self._queueing is not None:
            self._queueing.cancel()
        if self._filtering is not None:
            self._filtering.cut()
        self._end_in_order()

    def leave(self) -> None:
        """End the call in this process. If the provider continues the reply in the background, it keeps running;
        any other call is cancelled.
        """
        handle = self._handle
        if not self.accepted or handle is None:
            self.cancel()
            return
        self.abandoned = self._cancelled = True
        handle.abandon()

    async def run(self) -> CallOutcome:
        """Make the call. Raises AdapterError, CancelledError or BudgetExceededError."""
        if not self.request.response_id:  # otherwise the process that requested the reply has reserved it
            await self.reserve(self._worst_case_in)
        self.accepted = bool(self.request.response_id)
        self.begin()
        first_seq = self._log.next_seq
        end: LlmCallCompleted | AdapterError | None = None
        try:
            response = await (self._answer() if self._filtering is None else self._filtered(self._filtering))
            if self._warnings:
                response = msgspec.structs.replace(response, warnings=(*self._warnings, *response.warnings))
            cost = self.price(response.usage, response.model)
            if response.stop_reason is StopReason.CANCELLED:
                error = self.cancelled_error()
                error.content, error.usage = response.content, response.usage
                raise error
            end = self.completed(response, cost, response.stop_reason, response.raw_stop_reason)
            end.with_reply(response.content)
            return CallOutcome(response=response, cost=cost)
        except AdapterError as failure:
            end = failure
            if self._filtering is not None and self._filtering.error is not None:
                raise self._filtering.error from None
            raise
        finally:
            end = end or self.cancelled_error()
            if isinstance(end, AdapterError):
                self._end_early(first_seq, end)
            self.over, self.on_accepted = True, None  # the callback refers to the session, which may now be freed
            if self.abandoned and isinstance(end, AdapterError):
                self.leave_open(end)
            else:
                self.publish_end(end)
            self._account_for_stop(end)
            await self._hand_over_end()

    def _worst_case_in(self, priced: Priced) -> Amount:
        context, entry = self.context, self._running.entry
        options = self.request.provider_options
        fees = tool_fees(options, adapter=entry.name, adapter_type=entry.type)
        tiers = tiers_of(options, adapter=entry.name, adapter_type=entry.type)
        priced = msgspec.structs.replace(priced, tiers=tiers)
        worst_case = worst_case_of_reply(priced, context.estimated_input_tokens, self.most_output, fees)
        if not self._unlimited or not context.runtime.budgets.would_refuse(self.payer, worst_case):
            return worst_case
        # The budget has no room for a reply without a limit. So the canonical request is sent, which has a limit.
        self._unlimited = False
        self.request = msgspec.structs.replace(self.request, wire=None)
        self.most_output = self.request.max_output_tokens
        return self._worst_case_in(priced)

    async def _filtered(self, filtering: Filtering) -> CanonicalResponse:
        """The adapter's response, filtered by middleware."""
        response = await filtering.around(partial(self._taken_in, filtering), self._deadline)
        if filtering.error is not None or filtering.unfinished:
            error = self.cancelled_error()
            error.usage = response.usage  # The provider bills the reply, also if the reply is rejected later.
            raise error
        content = filtering.content
        if content is None or content == response.content:
            return response
        # The content did not pass the guardrail, so it must not be quoted.
        return msgspec.structs.replace(response, content=content, raw=None, provider_details={})

    async def _taken_in(self, filtering: Filtering) -> CanonicalResponse:
        response = await self._answer()
        if not self.streamed:
            filtering.take_in(whole_events(response, self.request.message_id))
        return response

    def _account_for_stop(self, end: object) -> None:
        """Set the usage and cost of the call on a guardrail's error."""
        stop = None if self._filtering is None else self._filtering.error
        if isinstance(stop, AdapterError) and isinstance(end, AdapterError):
            stop.content, stop.usage, stop.cost = end.content, end.usage, end.cost
            stop.request_id, stop.provider = self.request.request_id, self.context.routing.provider

    # --- Waiting ---

    async def _patiently(self, wait: Callable[[], Awaitable[None]]) -> None:
        if self._cancelled:
            raise self.cancelled_error()
        with anyio.CancelScope(deadline=self._deadline) as self._queueing:
            await wait()
        if self._queueing.cancelled_caught:
            raise self.cancelled_error()

    def _time_left(self, running: RunningAdapter) -> float:
        limit = self.request.timeout_seconds
        return min(super()._time_left(running) if limit is None else limit, self._deadline - anyio.current_time())

    async def _answer(self) -> CanonicalResponse:
        """The adapter's response. On every outcome, the adapter's work ends and the slot is released.

        Timers end the wait, which is cheaper than a cancel scope.
        """
        if self._cancelled:
            raise self.cancelled_error()
        slots = await self._slot_and_turn(self._running)
        handle: CallHandle[CanonicalResponse] | None = None
        try:
            self.requested = True
            sink = None
            if self.streamed:
                sink = self._take_in if self._filtering is None else self._filtering.take_in
            handle = self._handle = start_call(self._running.ref, self.request, sink, on_attempt=self.on_attempt)
            if self._cancelled:  # cancelled while the call waited for its slot
                self._end_in_order()
            elif self._deadline < math.inf:
                self._timer = asyncio.get_running_loop().call_at(self._deadline, self._end_in_order)
            await handle.ended()
            return _marked(handle.result())
        except CancelledError:
            raise
        except AdapterError as failure:
            if not self._ending:
                raise
            error = self.cancelled_error()  # the adapter failed or was stopped during the cancellation
            error.content, error.usage = failure.content, failure.usage
            raise error from failure
        finally:
            self._handle = None
            if self._timer is not None:
                self._timer.cancel()
            if handle is not None:
                handle.kill()
            slots.release()

    def _end_in_order(self) -> None:
        """Cancel the adapter's call. After the grace period, stop waiting for the adapter."""
        handle = self._handle
        if handle is None or handle.done or self._ending:
            return
        self._ending = True
        loop = asyncio.get_running_loop()
        self._telling = loop.create_task(_cancel(handle))  # in a task, because this may run in a callback
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(self._grace, handle.abandon)

    def _take_in(self, events: Sequence[StreamEvent]) -> None:
        if self.over:  # an adapter that ignores a cancellation may still send
            return
        if self._warnings:
            events = self._warned(events)
        if events and isinstance(events[-1], MessageComplete):
            self._end.append(events[-1])
            events = events[:-1]
        self._log.extend(events)

    def _deliver(self, events: Sequence[StreamEvent]) -> None:
        """Process the events that middleware passes on. If the reply is not streamed, its content comes from the
        filter.
        """
        if self.streamed:
            self._take_in(events)

    def _warned(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """The events, with the earlier warnings added to the start of a message."""
        return [
            msgspec.structs.replace(event, warnings=(*self._warnings, *event.warnings))
            if isinstance(event, MessageStart)
            else event
            for event in events
        ]

    def used(self) -> TokenUsage:
        return self.used_by_now(self._content)

    def used_by_now(self, content: tuple[ContentBlock, ...]) -> TokenUsage:
        """The usage of the attempt in progress, as recorded if the call ended now."""
        if not self.in_progress:
            return NOTHING_USED
        actor = self._running.ref.actor
        adapter = actor.made if isinstance(actor, AdapterActor) else None
        if isinstance(adapter, MeteredAdapter):
            used = adapter.usage_so_far(self.request.request_id)
            if used is not None:
                return used
        sent = self.context.estimated_input_tokens or 0
        delivered = _output_tokens(adapter, self.request.wire_model, content) if adapter is not None else 0
        return TokenUsage(sent, delivered, source=UsageSource.ESTIMATED)

    async def _hand_over_end(self) -> None:
        try:
            if self.streamed:
                await self.secured()
        finally:
            self._log.extend(self._end)

    def _end_early(self, first_seq: int, error: AdapterError) -> None:
        """Set usage and content on the error, and publish the message's end, which the adapter did not send."""
        accumulator = StreamAccumulator()
        for event in self._log.snapshot:  # the snapshot has the start of a large stream, which is folded
            if getattr(event, "message_id", None) == self.request.message_id:
                accumulator.process(event)
        for event in (*self._log.since(first_seq), *self._end):
            accumulator.process(event)
        cancelled = isinstance(error, CancelledError)
        reason = StopReason.CANCELLED if cancelled else StopReason.ERROR
        self._content = accumulator.content
        self.account(error)
        self._end += accumulator.closing_events(reason, error.usage or NOTHING_USED)
        if not error.content or self._filtering is not None:
            error.content = with_whole_calls(accumulator.content, reason)


def _marked(response: CanonicalResponse) -> CanonicalResponse:
    """The response, with a warning if it ended normally but is empty."""
    if not is_empty(response.content, response.stop_reason):
        return response
    stop_reason = response.raw_stop_reason or str(response.stop_reason)
    text = f"the reply ended with {stop_reason} and has no text and no tool call. Set retry_empty= to retry"
    warnings = (*response.warnings, CallWarning(WarningCode.EMPTY_REPLY, text))
    return msgspec.structs.replace(response, warnings=warnings)


def _most_of_wire(running: RunningAdapter, request: CanonicalRequest, body: JsonObject) -> int:
    """The maximum output tokens of a client's request. The client's own body is sent, which may set no limit."""
    limit = request.max_output_tokens
    most = most_output_of_body(body, limit)
    if most == limit and not request.default_output_limit:
        return limit
    actor = running.ref.actor
    adapter = actor.made if isinstance(actor, AdapterActor) else None
    if request.capabilities is None or not isinstance(adapter, SendsClientRequests):
        return limit
    if not adapter.sends_client_request(request):
        return limit
    return (
        most_output_of_body(body, request.capabilities.max_output_tokens) if request.default_output_limit else most
    )


async def _cancel(handle: CallHandle[CanonicalResponse]) -> None:
    handle.cancel()


_NOTHING_SAID = Message(Role.ASSISTANT, ())


def _output_tokens(adapter: ProviderAdapter, model: str, content: tuple[ContentBlock, ...]) -> int:
    """An estimate of the tokens of the reply so far."""
    if not content:
        return 0
    estimate = adapter.estimate_input_tokens
    estimated = estimate((Message(Role.ASSISTANT, content),), model=model)
    return max(estimated - estimate((_NOTHING_SAID,), model=model), 0)

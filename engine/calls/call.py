"""One call: one request to one (provider, model), with all its attempts, and exactly one terminal event.

The adapter's actor reports attempts as they happen; this task alone publishes `llm.call_*`. Whatever ends the call
(a return, an error, a crash of the adapter, a cancellation, the engine's shutdown), one `finally` without an
`await` ends the message and publishes the terminal that is still missing. Readers of a stream see its end when
what was published can't be lost with this process any more; for who waits for a whole reply the turn sees to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import anyio
import msgspec

from adapters import (
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
from adapters.actor import AdapterActor, CallHandle, start_call
from adapters.contract import MeteredAdapter, ProviderAdapter
from adapters.usage.unfinished import NOTHING_USED
from bus import (
    ActorRef,
    Cost,
    LlmCallCompleted,
    LlmCallFailed,
    StreamLog,
)
from bus.errors import CancelledError
from bus.streams.events import TurnEvent
from bus.values.call_settings import CallSettings
from bus.values.usage import UsageSource
from bus.values.whole_calls import with_whole_calls

from .accumulator import StreamAccumulator, whole_reply_events
from .events import CallEvents, EventScene
from .settings import settings_of
from .slots import CallSlots

CANCEL_GRACE_SECONDS = 5.0
"""How long an adapter may take to end a cancelled call in order, before the call is ended without it."""


EventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Sequence[StreamEvent]]
"""Given some events of a message, in order, the events to deliver in their place."""


class CallScene(EventScene, frozen=True, kw_only=True):
    """What a call needs besides its request.

    order: of its turn, who is first gets a slot first. deadline: when the call is cancelled of itself, in the
    event loop's time. drain_seconds: how long a cancelled call may be read on. filter: what the message's events
    go through before anybody sees them.
    """

    adapter: ActorRef
    slots: CallSlots
    log: StreamLog[TurnEvent]
    warnings: tuple[CallWarning, ...] = ()
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
        """All text of the reply."""
        return self.response.text

    @property
    def usage(self) -> TokenUsage:
        """Its tokens."""
        return self.response.usage


class Call(CallEvents):
    """The state of one call. Run it once; `cancel()` from anywhere on the same loop."""

    def __init__(self, request: CanonicalRequest, scene: CallScene, streamed: bool) -> None:
        super().__init__(scene, request.request_id, request.message_id, streamed=streamed)
        self.request = request
        self.scene = scene
        self.most_output = request.max_output_tokens
        self._cancelled = False
        self._waiting: anyio.CancelScope | None = None
        self._filtered: tuple[ContentBlock, ...] | None = None
        self._filter_error: Exception | None = None
        self._end: list[StreamEvent] = []  # of the message, until it may be handed over
        self._content: tuple[ContentBlock, ...] = ()

    def settings(self) -> CallSettings | None:
        return settings_of(self.scene.server, self.request)

    def cancel(self) -> None:
        """Ask the call to end. Idempotent; `run()` then raises CancelledError."""
        self._cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> CallOutcome:
        """Raises AdapterError; CancelledError (ours) after `cancel()` or its deadline, with what had arrived."""
        self.begin()
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
            terminal = self.completed(response, cost, response.stop_reason, response.raw_stop_reason)
            return CallOutcome(response=response, cost=cost)
        except AdapterError as failure:
            error = failure
            if self._filter_error is not None:
                raise self._filter_error from None
            raise
        finally:
            if terminal is None:
                self._end_early(first_seq, error)
            self.over = True
            self.publish_terminal(terminal, error)
            await self._hand_over_end()

    async def _converse(self) -> CanonicalResponse:
        if self._cancelled:
            raise self._cancelled_error()
        if not self.scene.slots.try_acquire():
            await self._queue()
        try:
            sink = self._take_in if self.streamed else None
            self.asked = True
            handle = start_call(self.scene.adapter, self.request, sink, on_attempt=self.on_attempt)
            response = await self._response(handle)
        finally:
            self.scene.slots.release()
        if not self.streamed and self.scene.filter is not None:
            self._through_filter(self.scene.filter, whole_reply_events(self.request.message_id, response))
        if self._filter_error is not None:
            error = self._cancelled_error()
            error.usage = response.usage  # paid for, whatever becomes of it
            raise error
        return response if self._filtered is None else msgspec.structs.replace(response, content=self._filtered)

    async def _queue(self) -> None:
        with anyio.CancelScope(deadline=self.scene.deadline) as self._waiting:
            await self.scene.slots.acquire(self.scene.order)
        if self._waiting.cancelled_caught:
            raise self._cancelled_error()

    async def _response(self, handle: CallHandle[CanonicalResponse]) -> CanonicalResponse:
        """The adapter's response. Once cancelled, it has a grace to end the call in order; then it is left."""
        try:
            with anyio.CancelScope(deadline=self.scene.deadline) as self._waiting:
                if self._cancelled:  # while it got its slot
                    self._waiting.cancel()
                return await handle.wait()
            handle.cancel()
            error = self._cancelled_error()
            with anyio.move_on_after(CANCEL_GRACE_SECONDS + self.scene.drain_seconds):
                try:
                    return await handle.wait()
                except CancelledError:
                    raise
                except AdapterError as failure:  # it fails while it is cancelled, or is stopped meanwhile
                    error.content, error.usage = failure.content, failure.usage
                    raise error from failure
            raise error
        finally:
            handle.kill()  # which does nothing if it is done

    def _cancelled_error(self) -> CancelledError:
        return CancelledError("the call was cancelled", request_id=self.request.request_id)

    def _take_in(self, events: Sequence[StreamEvent]) -> None:
        if self.over or self._filter_error is not None:  # an adapter that ignores its cancelling may still send
            return
        if self.scene.filter is not None:
            events = self._through_filter(self.scene.filter, events)
        if self.scene.warnings:
            events = self._warned(events)
        if events and isinstance(events[-1], MessageComplete):
            self._end.append(events[-1])
            events = events[:-1]
        self.scene.log.extend(events)

    def _warned(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """The same events, where a message begins with what is known to be amiss."""
        known = self.scene.warnings
        return [
            msgspec.structs.replace(event, warnings=(*known, *event.warnings))
            if isinstance(event, MessageStart)
            else event
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

    # -- what it has used

    def used(self) -> TokenUsage:
        return self.used_by_now(self._content)

    def used_by_now(self, content: tuple[ContentBlock, ...]) -> TokenUsage:
        """What the attempt under way has used: as its adapter says, or else as much as has come. content: that.

        It is what is booked if the call ends here.
        """
        if not self.under_way:
            return NOTHING_USED
        actor = self.scene.adapter.actor
        adapter = actor.made if isinstance(actor, AdapterActor) else None
        if isinstance(adapter, MeteredAdapter):
            used = adapter.usage_so_far(self.request.request_id)
            if used is not None:
                return used
        sent = self.scene.estimated_input_tokens or 0
        delivered = _output_tokens(adapter, self.request.wire_model, content) if adapter is not None else 0
        return TokenUsage(sent, delivered, source=UsageSource.ESTIMATED)

    # -- the log

    async def _hand_over_end(self) -> None:
        try:
            if self.streamed:
                await self.secured()
        finally:
            self.scene.log.extend(self._end)

    def _end_early(self, first_seq: int, error: AdapterError) -> None:
        """Say what the call had used, and give the message the end that it lacks if the adapter could not."""
        accumulator = StreamAccumulator()
        for event in self.scene.log.snapshot:  # of a stream so big that its first part is folded
            if getattr(event, "message_id", None) == self.request.message_id:
                accumulator.process(event)
        for event in (*self.scene.log.since(first_seq), *self._end):
            accumulator.process(event)
        cancelled = isinstance(error, CancelledError)
        reason = StopReason.CANCELLED if cancelled else StopReason.ERROR
        self._content = accumulator.content
        self.account(error)
        self._end += accumulator.closing_events(reason, error.usage or NOTHING_USED)
        if not error.content or self.scene.filter is not None:
            error.content = with_whole_calls(accumulator.content, reason)


_NOTHING_SAID = Message(Role.ASSISTANT, ())


def _output_tokens(adapter: ProviderAdapter, model: str, content: tuple[ContentBlock, ...]) -> int:
    """About how many tokens a reply has come to."""
    if not content:
        return 0
    estimate = adapter.estimate_input_tokens
    said = estimate((Message(Role.ASSISTANT, content),), model=model)
    return max(said - estimate((_NOTHING_SAID,), model=model), 0)

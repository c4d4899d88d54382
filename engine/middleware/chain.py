"""The chain of an engine's middleware.

The engine's first middleware is the outermost. It receives a request first and the outcome last. If it doesn't
pass a request on, the others never receive the request. Every call of a conversation passes through the chain,
including calls in tool rounds and after a fallback. The request is already fitted to the chosen model. Middleware
can't change the requests of other calls (embeddings, images, videos). It only admits these calls and observes
their end.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, TypeVar, cast

import anyio
import msgspec

from callboard.adapters import CanonicalRequest, ContentBlock, MessageComplete, StreamEvent
from callboard.bus import ConfigurationError
from callboard.bus.log import Log

from ..calls.outcome import CallEnd, CallInfo, CallOutcome

# --- The interface of a middleware ---

EventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Sequence[StreamEvent]]
"""A function that receives some events of a message, in order, and returns the events to deliver instead."""

AsyncEventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Awaitable[Sequence[StreamEvent]]]
"""An `EventFilter` that may wait. It receives the events that arrive meanwhile as one batch."""

AnyEventFilter: TypeAlias = EventFilter | AsyncEventFilter
"""A plain or an async filter."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of text that a guardrail changed or stopped."""

    guardrail: str
    """The guardrail's name."""
    action: Literal["changed", "stopped"]
    content_block_index: int
    """The index of the block in the reply, from 0."""
    held_characters: int
    """The length of the piece."""
    passed_characters: int
    """The length of the text that was delivered instead."""
    reason: str = ""
    """The reason for stopping."""


class StoppedAfter(Exception):
    """Raised by a filter to end the reply: some events are still delivered, then the call fails with an error."""

    def __init__(self, passed: Sequence[StreamEvent], error: Exception) -> None:
        super().__init__(str(error))
        self.passed = passed
        self.error = error


GuardReport: TypeAlias = Callable[[Judged], object]
"""A function that receives a `Judged` report."""

Next: TypeAlias = Callable[[CanonicalRequest], Awaitable[CallOutcome]]
"""A function that passes a request to the next middleware, or from the last middleware to the model."""

Around: TypeAlias = Callable[[CanonicalRequest, Next], Awaitable[CallOutcome]]
"""A middleware that is an async function: ``async def name(request, next)``."""

Steps: TypeAlias = Generator[CanonicalRequest, CallOutcome, CallOutcome | None]
"""The generator of a middleware that is written as a generator function."""


class Middleware:
    """Middleware with all hooks. Override any of them. One object serves all concurrent calls of an engine."""

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        """Answer one call of a conversation.

        Args:
            request: The request. `request.stream` is True if the call is streamed.
            next: Passes a request on. Await it again to retry, or to call another `request.model`. It can't be
                awaited again after a part of a streamed reply has been delivered.

        Returns:
            The outcome of `next(request)`, or an outcome that the middleware creates.
        """
        return await next(request)

    def events(self, request: CanonicalRequest) -> AnyEventFilter | None:
        """A filter for the events of one call, plain or async; None changes no event.

        If the call is not streamed, the filter receives all events at the end, as one batch. The `final_content`
        of MessageComplete enters the history, so a filter that changes deltas changes it as well. A plain filter
        must be quick, because it runs on the event loop.
        """
        return None

    def guarded(self, request: CanonicalRequest, report: GuardReport) -> AnyEventFilter | None:
        """Like `events`, for middleware that reports its changes to the trace.

        Args:
            request: The request.
            report: Called with each piece of text that was changed or stopped.
        """
        return self.events(request)

    async def admit(self, call: CallInfo) -> None:
        """Allow a call that is not a conversation: return to allow it, wait to delay it, or raise an exception to
        prevent it.

        It is called separately for every fallback. It is not called for the operation ``video``, which records the
        cost of a finished video.
        """

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        """Observe the end of a call of any kind, with its usage and its cost.

        The method is not called for a request that was answered without a call. It must be quick. Its exceptions
        are only logged.
        """

    async def aclose(self) -> None:
        """Release all resources, because the engine has stopped. Another engine may still use the same object."""


MiddlewareLike: TypeAlias = Middleware | Around | Callable[[CanonicalRequest], Steps]
"""The types that are accepted as middleware: a `Middleware`, an async function of a request and `next`, or a plain
generator function of a request. The generator yields the request to send and receives the outcome:

    def timed(request):
        started = time.monotonic()
        outcome = yield request
        print(request.model, time.monotonic() - started, outcome.usage.output_tokens)

If the call fails, its exception is raised at the `yield`. An outcome that the generator returns replaces the
call's outcome. If it returns an outcome before the `yield`, no call is made.
"""


def is_async(function: object) -> bool:
    """Whether the result of a function must be awaited: an async function, a partial of one, or an object with an
    async call.
    """
    while isinstance(function, partial):
        function = function.func
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


_log = Log("engine.middleware")


class _Function(Middleware):
    def __init__(self, around: Around) -> None:
        self._around = around

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        return await self._around(request, next)


class _Steps(Middleware):
    def __init__(self, function: Callable[[CanonicalRequest], Steps]) -> None:
        self._function = function

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        steps = self._function(request)
        outcome: CallOutcome | None = None
        try:
            sent = steps.__next__()  # `next` is the layer below
            while True:
                try:
                    outcome = await next(sent)
                except Exception as error:
                    sent = steps.throw(error)
                else:
                    sent = steps.send(outcome)
        except StopIteration as stop:
            answer = outcome if stop.value is None else stop.value
            if not isinstance(answer, CallOutcome):
                name = getattr(self._function, "__qualname__", self._function)
                raise TypeError(
                    f"middleware {name} ended without an outcome. Yield the request, or return a CallOutcome"
                ) from None
            return answer
        finally:
            steps.close()


def middleware_of(middleware: MiddlewareLike) -> Middleware:
    """Convert middleware of any of the three forms to a `Middleware`."""
    if isinstance(middleware, Middleware):
        return middleware
    call: Any = (
        middleware
        if inspect.isroutine(middleware) or isinstance(middleware, partial)
        else type(middleware).__call__
    )
    if inspect.isgeneratorfunction(call):
        return _Steps(cast("Callable[[CanonicalRequest], Steps]", middleware))
    if inspect.iscoroutinefunction(call):
        return _Function(cast("Around", middleware))
    raise ConfigurationError(
        f"{middleware!r} is not a middleware: expected a Middleware object, `async def name(request, next)` "
        "or a generator function `def name(request)` that yields the request"
    )


class Chain:
    def __init__(self, layers: Sequence[MiddlewareLike]) -> None:
        self._layers = tuple(middleware_of(each) for each in layers)

    def __bool__(self) -> bool:
        return bool(self._layers)

    async def around(self, request: CanonicalRequest, send: Next) -> CallOutcome:
        inner = send
        for layer in reversed(self._layers):
            inner = partial(layer.call, next=inner)
        return await inner(request)

    def filter(self, request: CanonicalRequest, report: GuardReport) -> AnyEventFilter | None:
        """The combined filter for the events of a call, innermost layer first; None if no layer has a filter.

        It is async if the filter of any layer is async.
        """
        layers = reversed(self._layers)
        found = [each for layer in layers if (each := layer.guarded(request, report)) is not None]
        if not found:
            return None
        if any(map(is_async, found)):
            return partial(_wait_through, found)
        return partial(_through, cast("list[EventFilter]", found))

    async def admit(self, call: CallInfo) -> None:
        """Wait until all layers have admitted the call. The exception of a layer is raised here."""
        for layer in self._layers:
            await layer.admit(call)

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        for layer in self._layers:
            try:
                layer.settle(call, end)
            except Exception as error:  # The call has ended, and the other layers must also get its end.
                text = f"{type(error).__name__}: {error}"
                _log.error("settle_failed", error, layer=type(layer).__name__, error=text)

    async def aclose(self) -> None:
        for layer in self._layers:
            await layer.aclose()


def _through(filters: Sequence[EventFilter], events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
    error: Exception | None = None
    for each in filters:
        try:
            events = each(events)
        except StoppedAfter as stopped:  # The next layer may still stop the text that has passed this layer.
            events, error = stopped.passed, error or stopped.error
    if error is not None:
        raise StoppedAfter(events, error)
    return events


async def _wait_through(filters: Sequence[AnyEventFilter], events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
    error: Exception | None = None
    for each in filters:
        try:
            passed = each(events)
            events = await passed if isinstance(passed, Awaitable) else passed
        except StoppedAfter as stopped:
            events, error = stopped.passed, error or stopped.error
    if error is not None:
        raise StoppedAfter(events, error)
    return events


# --- The filter of one call while its reply arrives ---

R = TypeVar("R")


class Filtering:
    """Runs the filter of one call, and passes its events to `deliver`.

    `stop` is called once, if the filter raises an exception.
    """

    def __init__(
        self,
        function: AnyEventFilter,
        deliver: Callable[[Sequence[StreamEvent]], object],
        stop: Callable[[], object],
    ) -> None:
        self.content: tuple[ContentBlock, ...] | None = None
        """The message's content after filtering; None before the message's end."""
        self.error: Exception | None = None
        """The filter's exception. The adapter did not cause it."""
        self.unfinished = False
        """Whether the filter was stopped after the adapter had finished."""
        self._deliver = deliver
        self._stop = stop
        waits = is_async(function)
        self._at_once = None if waits else cast("EventFilter", function)
        self._waiting = cast("AsyncEventFilter", function) if waits else None
        self._arrived: list[StreamEvent] = []
        self._news = anyio.Event()
        self._all_arrived = False
        self._cut = False
        self._scope: anyio.CancelScope | None = None

    def take_in(self, events: Sequence[StreamEvent]) -> None:
        """Filter some events, and deliver the result. If the filter waits, the events are delivered later."""
        if self.error is not None:  # an adapter that ignores a cancellation may still send
            return
        if self._at_once is None:
            self._arrived += events
            self._news.set()
            return
        try:
            passed = self._at_once(events)
        except Exception as error:
            self._fail(error)
            return
        self._hand_on(passed)

    async def around(self, work: Callable[[], Awaitable[R]], deadline: float) -> R:
        """Await work that adds events, and then wait until all events are filtered."""
        if self._waiting is None:
            return await work()
        failure: Exception | None = None
        result: R | None = None
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._filter_arriving, self._waiting)
            try:
                result = await work()
            except Exception as error:  # otherwise the task group would wrap the exception
                failure = error
            self._all_arrived = True
            self._news.set()
            group.cancel_scope.deadline = -math.inf if self._cut else deadline
        self.unfinished = group.cancel_scope.cancelled_caught
        if failure is not None:
            raise failure
        return cast("R", result)

    def cut(self) -> None:
        """Stop filtering: the call is cancelled."""
        self._cut = True
        if self._all_arrived and self._scope is not None:
            self._scope.cancel()

    async def _filter_arriving(self, function: AsyncEventFilter) -> None:
        while self._arrived or not self._all_arrived:
            if not self._arrived:
                await self._news.wait()
                self._news = anyio.Event()
                continue
            arrived, self._arrived = self._arrived, []
            try:
                passed = await function(arrived)
            except Exception as error:
                self._fail(error)
                return
            self._hand_on(passed)

    def _hand_on(self, events: Sequence[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, MessageComplete):
                self.content = event.final_content
        self._deliver(events)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, StoppedAfter):
            self._hand_on(error.passed)
            error = error.error
        self.error = error
        self._stop()

"""The chain of an engine's middleware, through which every call goes.

The engine's first middleware is the outermost. It sees a request first and the outcome last. If it doesn't pass a
request on, the others never see the request. Every call of a conversation passes through the chain, also in tool
rounds and after a fallback. Its request already fits the chosen model. Middleware can't change the requests of
other calls (embeddings, images, videos). It only admits these calls and observes their end.
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
"""A function that gets some events of a message, in order, and returns the events to deliver in their place."""

AsyncEventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Awaitable[Sequence[StreamEvent]]]
"""An `EventFilter` that may wait. It gets the events that arrive in the meantime as one batch."""

AnyEventFilter: TypeAlias = EventFilter | AsyncEventFilter
"""A filter that may wait, or one that doesn't."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of text that a guardrail changed or stopped."""

    guardrail: str
    """The guardrail's name."""
    action: Literal["changed", "stopped"]
    """The action of the guardrail."""
    content_block_index: int
    """The place of its block in the reply, from 0."""
    held_characters: int
    """The length of the piece."""
    passed_characters: int
    """The length of the text that was delivered instead."""
    reason: str = ""
    """The reason of a stop."""


class StoppedAfter(Exception):
    """Raised by a filter to end the reply: some events still pass, then the call fails with an error.

    Args:
        passed: The events.
        error: The error.
    """

    def __init__(self, passed: Sequence[StreamEvent], error: Exception) -> None:
        super().__init__(str(error))
        self.passed = passed
        self.error = error


GuardReport: TypeAlias = Callable[[Judged], object]
"""A function that receives the report about a piece."""

Next: TypeAlias = Callable[[CanonicalRequest], Awaitable[CallOutcome]]
"""A function that passes a request on: to the next middleware, and from the last one to the model."""

Around: TypeAlias = Callable[[CanonicalRequest, Next], Awaitable[CallOutcome]]
"""A middleware that is an async function: ``async def name(request, next)``."""

Steps: TypeAlias = Generator[CanonicalRequest, CallOutcome, CallOutcome | None]
"""The generator of a middleware that is a generator function."""


class Middleware:
    """A middleware with all hooks. Override any of them. One object serves all concurrent calls of an engine."""

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
        """A filter for the events of one call; None leaves all events as they are. It may be an async function.

        A call that is not streamed passes all its events through the filter in one pass. The `final_content` of
        MessageComplete enters the history, so a filter that changes deltas changes it as well. A filter that isn't
        async must be quick.
        """
        return None

    def guarded(self, request: CanonicalRequest, report: GuardReport) -> AnyEventFilter | None:
        """The filter of `events`, for a layer that reports its changes to the trace.

        Args:
            request: The request.
            report: Called with each piece of text that was changed or stopped.
        """
        return self.events(request)

    async def admit(self, call: CallInfo) -> None:
        """Allow a call that is not a conversation: return to allow it, wait to delay it, or raise an exception to
        prevent it.

        Every fallback is admitted separately. The operation ``video``, which counts the cost of a finished video,
        is not admitted.
        """

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        """Observe the end of a call of any kind, with its usage and its cost.

        A request that was answered without a call is not reported. The method must be quick. Its exceptions are
        only logged.
        """

    async def aclose(self) -> None:
        """Release all resources, because the engine has stopped. Another engine may still use the object."""


MiddlewareLike: TypeAlias = Middleware | Around | Callable[[CanonicalRequest], Steps]
"""The types that are accepted as middleware: a `Middleware`, an async function of a request and `next`, or a plain
generator function of a request. The generator yields the request to send and receives the outcome:

    def timed(request):
        started = time.monotonic()
        outcome = yield request
        print(request.model, time.monotonic() - started, outcome.usage.output_tokens)

A failure is raised at the `yield`. A returned outcome replaces the outcome; without a `yield` it answers the call.
"""


def is_async(function: object) -> bool:
    """Whether calls of a function are awaited: an async function, a partial of one, or an object with an async
    call.
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
            asked = steps.__next__()  # `next` is the layer below
            while True:
                try:
                    outcome = await next(asked)
                except Exception as error:
                    asked = steps.throw(error)
                else:
                    asked = steps.send(outcome)
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


def middleware_of(given: MiddlewareLike) -> Middleware:
    """A middleware of any of the three forms as a `Middleware`."""
    if isinstance(given, Middleware):
        return given
    call: Any = given if inspect.isroutine(given) or isinstance(given, partial) else type(given).__call__
    if inspect.isgeneratorfunction(call):
        return _Steps(cast("Callable[[CanonicalRequest], Steps]", given))
    if inspect.iscoroutinefunction(call):
        return _Function(cast("Around", given))
    raise ConfigurationError(
        f"{given!r} is not a middleware: expected a Middleware object, `async def name(request, next)` "
        "or a generator function `def name(request)` that yields the request"
    )


class Chain:
    """An engine's middleware, outermost first."""

    def __init__(self, given: Sequence[MiddlewareLike]) -> None:
        self._layers = tuple(middleware_of(each) for each in given)

    def __bool__(self) -> bool:
        return bool(self._layers)

    async def around(self, request: CanonicalRequest, send: Next) -> CallOutcome:
        """The outcome of a call after all layers."""
        inner = send
        for layer in reversed(self._layers):
            inner = partial(layer.call, next=inner)
        return await inner(request)

    def filter(self, request: CanonicalRequest, report: GuardReport) -> AnyEventFilter | None:
        """The filter for the events of a call, from the innermost layer outwards; None if no layer has one.

        It is async if a layer's is.
        """
        layers = reversed(self._layers)
        found = [each for layer in layers if (each := layer.guarded(request, report)) is not None]
        if not found:
            return None
        if any(map(is_async, found)):
            return partial(_wait_through, found)
        return partial(_through, cast("list[EventFilter]", found))

    async def admit(self, call: CallInfo) -> None:
        """Return when all layers have admitted the call. An exception of a layer is raised here."""
        for layer in self._layers:
            await layer.admit(call)

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        """Report to all layers how a call ended."""
        for layer in self._layers:
            try:
                layer.settle(call, end)
            except Exception as error:  # The call is over, and the other layers must get its end, too.
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
        except StoppedAfter as stopped:  # The next layer may still stop the text that has passed so far.
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
    """The filter of one call.

    Args:
        function: The filter.
        deliver: Gets the events that it lets pass.
        stop: Called once, if the filter raises an exception.
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
        """Filter some events, and deliver the events that pass. If the filter waits, they are delivered later."""
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
        """Await work that adds events, and return when all events are filtered."""
        if self._waiting is None:
            return await work()
        failure: Exception | None = None
        result: R | None = None
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._filter_arriving, self._waiting)
            try:
                result = await work()
            except Exception as error:  # the task group would raise it as another exception
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

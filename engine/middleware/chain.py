"""What stands around every call: functions that see its request before it is sent, and its outcome afterwards.

The first one given to the engine is the outermost: it is the first to see the request and the last to see the
outcome, and what it doesn't pass on doesn't reach the others. Each call of a conversation is wrapped, so each tool
round and each fallback is; the request is already fitted to the model that routing has chosen. Calls that are no
conversation (embeddings, images, videos) have other requests, and nothing about them can be changed here: they are
only admitted, and like all calls settled.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from adapters import CanonicalRequest, StreamEvent
from bus import ConfigurationError
from bus.log import Log

from ..calls.call import CallOutcome, EventFilter
from ..calls.events import CallEnd, CallInfo, Settle

_log = Log("engine.middleware")

Next: TypeAlias = Callable[[CanonicalRequest], Awaitable[CallOutcome]]
"""Sends a request on: to the next middleware, and from the last one to the model that it names."""

Around: TypeAlias = Callable[[CanonicalRequest, Next], Awaitable[CallOutcome]]
"""A middleware that waits: ``async def name(request, next)``."""

Steps: TypeAlias = Generator[CanonicalRequest, CallOutcome, CallOutcome | None]
"""What a middleware that is a generator function returns."""


class Middleware:
    """All hooks; override any. One object serves all calls of an engine, many of them at once."""

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        """Return what `next(request)` returns, of this or a changed request, or an outcome of your own.

        `next` may be awaited again, for another try, or for another model with the request's `model` changed. Of a
        streamed call it may not once a part of the reply has been delivered. `request.stream` tells which it is.
        """
        return await next(request)

    def events(self, request: CanonicalRequest) -> EventFilter | None:
        """A function for the events of this call, a list at a time: what it returns is delivered in their place.

        A call that is not streamed has them as well, all at once. The `final_content` of MessageComplete is what
        enters the history, so change it along with the deltas. None leaves all as it is. It must be quick.
        """
        return None

    async def admit(self, call: CallInfo) -> None:
        """Before a call that is no conversation: wait, or raise, and it is not made. Each fallback is asked about.

        Not asked about is the operation ``video``, with which a video that is finished is paid.
        """

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        """A call, of whatever kind, has ended, with `end.usage` and `end.cost`, as far as they are known.

        What was answered without a call has no end. It must be quick, and what it raises is only logged.
        """

    async def aclose(self) -> None:
        """The engine has stopped. What is held may be let go; another engine may still come."""


MiddlewareLike: TypeAlias = Middleware | Around | Callable[[CanonicalRequest], Steps]
"""What an engine takes: a `Middleware`; an async function of a request and `next`; or a plain generator function
of a request, which yields what to send and is given the outcome:

    def timed(request):
        began = time.monotonic()
        outcome = yield request
        print(request.model, time.monotonic() - began, outcome.usage.output_tokens)

A failure is raised where it yields. What it returns replaces the outcome, and without a yield answers the call.
"""


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
                    f"middleware {name} ended without an outcome: yield the request, or return a CallOutcome"
                ) from None
            return answer
        finally:
            steps.close()


def middleware_of(given: MiddlewareLike) -> Middleware:
    """Any of the three forms as a Middleware. Raises ConfigurationError for anything else."""
    if isinstance(given, Middleware):
        return given
    call: Any = given if inspect.isroutine(given) or isinstance(given, partial) else type(given).__call__
    if inspect.isgeneratorfunction(call):
        return _Steps(cast("Callable[[CanonicalRequest], Steps]", given))
    if inspect.iscoroutinefunction(call):
        return _Function(cast("Around", given))
    raise ConfigurationError(
        f"middleware {given!r} is none: give a Middleware object, `async def name(request, next)` "
        "or a generator function `def name(request)` that yields the request"
    )


class Chain:
    """An engine's middleware, outermost first."""

    def __init__(self, given: Sequence[MiddlewareLike]) -> None:
        self._layers = tuple(middleware_of(each) for each in given)

    def __bool__(self) -> bool:
        return bool(self._layers)

    async def around(self, request: CanonicalRequest, send: Next) -> CallOutcome:
        """The outcome of a call that `send` makes, as all layers leave it."""
        inner = send
        for layer in reversed(self._layers):
            inner = partial(layer.call, next=inner)
        return await inner(request)

    def filter(self, request: CanonicalRequest) -> EventFilter | None:
        """What the events of a call go through, from the innermost layer outwards."""
        found = [each for layer in reversed(self._layers) if (each := layer.events(request)) is not None]
        if not found:
            return None

        def through(events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
            for each in found:
                events = each(events)
            return events

        return through

    async def admit(self, call: CallInfo) -> None:
        for layer in self._layers:
            await layer.admit(call)

    @property
    def settling(self) -> Settle | None:
        """What is to be told the end of each call; None if nobody wants to know it."""
        return self._settle if self._layers else None

    def _settle(self, call: CallInfo, end: CallEnd) -> None:
        for layer in self._layers:
            try:
                layer.settle(call, end)
            except Exception as error:  # the call is over, and the others must hear of it, too
                told = f"{type(error).__name__}: {error}"
                _log.error("settle_failed", error, layer=type(layer).__name__, error=told)

    async def aclose(self) -> None:
        for layer in self._layers:
            await layer.aclose()

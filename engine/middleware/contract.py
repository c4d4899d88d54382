"""What a middleware is: the hooks that it may have, and the three forms in which a host may write it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Literal, TypeAlias

import msgspec

from callboard.adapters import CanonicalRequest, StreamEvent

from ..calls.outcome import CallEnd, CallInfo, CallOutcome

EventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Sequence[StreamEvent]]
"""A function that gets some events of a message, in order, and returns the events to deliver in their place."""

AsyncEventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Awaitable[Sequence[StreamEvent]]]
"""An `EventFilter` that may wait. Events that come meanwhile reach it next, all at once."""

AnyEventFilter: TypeAlias = EventFilter | AsyncEventFilter
"""A filter that may wait, or one that doesn't."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a piece of text that did not pass a guardrail as it was."""

    guardrail: str
    """The guardrail's name."""
    action: Literal["changed", "stopped"]
    """What was done."""
    content_block_index: int
    """The place of its block in the reply, from 0."""
    held_characters: int
    """The length of the piece."""
    passed_characters: int
    """The length of what passed in its place."""
    reason: str = ""
    """The reason of a stop."""


class StoppedAfter(Exception):
    """A filter ends the reply: some events still pass, and then the call fails with an error.

    Args:
        passed: The events.
        error: The error.
    """

    def __init__(self, passed: Sequence[StreamEvent], error: Exception) -> None:
        super().__init__(str(error))
        self.passed = passed
        self.error = error


GuardReport: TypeAlias = Callable[[Judged], object]
"""Gets what became of a piece."""

Next: TypeAlias = Callable[[CanonicalRequest], Awaitable[CallOutcome]]
"""A function that passes a request on: to the next middleware, and from the last one to the model."""

Around: TypeAlias = Callable[[CanonicalRequest, Next], Awaitable[CallOutcome]]
"""A middleware that is an async function: ``async def name(request, next)``."""

Steps: TypeAlias = Generator[CanonicalRequest, CallOutcome, CallOutcome | None]
"""The generator that a middleware returns which is a generator function."""


class Middleware:
    """A middleware with all hooks. Override any of them. One object serves all calls of an engine, many at
    once."""

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        """Answer one call of a conversation.

        Args:
            request: The request. `request.stream` tells whether the call is streamed.
            next: Passes a request on. It may be awaited again for another try, or with another `model` in the
                request. Once a part of a streamed reply has been delivered, it may not be awaited again.

        Returns:
            The outcome of `next(request)`, or an outcome of the middleware's own.
        """
        return await next(request)

    def events(self, request: CanonicalRequest) -> AnyEventFilter | None:
        """A filter for the events of one call; None leaves all events as they are. It may be an async function.

        A call that is not streamed passes all its events through the filter at once. The `final_content` of
        MessageComplete enters the history, so a filter that changes deltas changes it as well. A filter that isn't
        async must be quick.
        """
        return None

    def guarded(self, request: CanonicalRequest, report: GuardReport) -> AnyEventFilter | None:
        """The filter of `events`, for a layer that tells the trace of what it changes.

        Args:
            request: The request.
            report: Told of each piece of text that didn't pass as it was.
        """
        return self.events(request)

    async def admit(self, call: CallInfo) -> None:
        """Let a call pass that is no conversation: wait, or raise an exception so that it is not made.

        Every fallback is admitted by itself. The operation ``video``, which counts the cost of a finished video,
        is not admitted.
        """

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        """Take note of the end of a call of any kind, with `end.usage` and `end.cost` as far as they are known.

        A request that was answered without a call has no end. The method must be quick. Its exceptions are only
        logged.
        """

    async def aclose(self) -> None:
        """Let go of everything that is held, because the engine has stopped. Another engine may still come."""


MiddlewareLike: TypeAlias = Middleware | Around | Callable[[CanonicalRequest], Steps]
"""What an engine takes as middleware. It is a `Middleware`, an async function of a request and `next`, or a plain
generator function of a request, which yields the request to send and is sent the outcome:

    def timed(request):
        began = time.monotonic()
        outcome = yield request
        print(request.model, time.monotonic() - began, outcome.usage.output_tokens)

A failure is raised at the `yield`. A returned outcome replaces the outcome; without a `yield` it answers the call.
"""


def is_async(function: object) -> bool:
    """Whether a call of a function is awaited: an async function, a part of one, or an object with one."""
    while isinstance(function, partial):
        function = function.func
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)

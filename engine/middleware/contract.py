"""What a middleware is: the hooks that it may have, and the three forms in which a host may write it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TypeAlias

from adapters import CanonicalRequest, StreamEvent

from ..calls.outcome import CallEnd, CallInfo, CallOutcome

EventFilter: TypeAlias = Callable[[Sequence[StreamEvent]], Sequence[StreamEvent]]
"""A function that gets some events of a message, in order, and returns the events to deliver in their place."""

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

    def events(self, request: CanonicalRequest) -> EventFilter | None:
        """A filter for the events of one call; None leaves all events as they are.

        A call that is not streamed passes all its events through the filter at once. The `final_content` of
        MessageComplete enters the history, so a filter that changes deltas changes it as well. The filter must be
        quick.
        """
        return None

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

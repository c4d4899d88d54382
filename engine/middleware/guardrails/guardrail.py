"""A guardrail: a middleware that looks at a reply's text before anybody reads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias, cast

from callboard.adapters import CanonicalRequest, StreamEvent

from ..contract import AnyEventFilter, GuardReport, Middleware, is_async
from .held_reply import GuardedKind, Held, HeldReply, Stop
from .windows import Window

Guard: TypeAlias = Callable[[Held], str | Stop] | Callable[[Held], Awaitable[str | Stop]]
"""A function, plain or async, that gets a piece of text, and returns the text to deliver for it or a `Stop`."""

_TEXT: tuple[GuardedKind, ...] = ("text",)


class Guardrail(Middleware):
    """Holds a reply's text back until a function has looked at it.

    Readers of the stream, the reply, the session's history and captured content have only what the function let
    pass. Calls of tools, and blocks of other kinds, pass as they are, in their order. The text of a reply that
    ends badly (cancelled, broken off) and was not looked at is dropped.

    An exception of the function ends the call, and is raised. Whatever the function makes of the text, the call is
    billed for all that the provider generated.

    Args:
        check: The function. An async one may ask another model. The reply goes on arriving while it waits.
        window: How much text it gets at once. More takes longer to be read; see `Window`.
        kinds: The kinds of text that it gets. A reply that must go back to its provider with its reasoning can't
            if the reasoning was changed.
        name: The name in the trace; None takes the function's.

    Raises:
        ValueError: There is no such kind.
    """

    def __init__(
        self,
        check: Guard,
        *,
        window: Window | None = None,
        kinds: Collection[GuardedKind] = _TEXT,
        name: str | None = None,
    ) -> None:
        unknown = set(kinds) - {"text", "thinking"}
        if unknown:
            raise ValueError(f"a guardrail looks at text and thinking, not at {', '.join(sorted(unknown))}")
        self.name = name or str(getattr(check, "__name__", type(check).__name__))
        """The name in the trace."""
        self._check = check
        self._waits = is_async(check)
        self._window = window or Window.sentences()
        self._kinds = frozenset(kinds)

    def guarded(self, request: CanonicalRequest, report: GuardReport) -> AnyEventFilter:
        """A filter for the events of one call.

        Args:
            request: The request.
            report: Told of each piece that was changed or stopped.
        """
        reply = HeldReply(self.name, self._window, self._kinds, request, report)
        if self._waits:
            return partial(_wait_through, reply, cast("Callable[[Held], Awaitable[str | Stop]]", self._check))
        return partial(_through, reply, cast("Callable[[Held], str | Stop]", self._check))


def _through(
    reply: HeldReply, check: Callable[[Held], str | Stop], events: Sequence[StreamEvent]
) -> list[StreamEvent]:
    steps = reply.steps(events)
    try:
        held = next(steps)
        while True:
            held = steps.send(check(held))
    except StopIteration:
        return reply.take()


async def _wait_through(
    reply: HeldReply, check: Callable[[Held], Awaitable[str | Stop]], events: Sequence[StreamEvent]
) -> list[StreamEvent]:
    steps = reply.steps(events)
    try:
        held = next(steps)
        while True:
            held = steps.send(await check(held))
    except StopIteration:
        return reply.take()

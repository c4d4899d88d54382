"""A reply's events on their way through a call's middleware.

A filter that needn't wait runs where the events arrive, in the adapter's task. One that may wait runs in a task
beside the call, and what arrives meanwhile stays here, in order. The reply is over when all of it is filtered.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import anyio

from callboard.adapters import ContentBlock, MessageComplete, StreamEvent

from ..middleware.contract import AnyEventFilter, AsyncEventFilter, EventFilter, StoppedAfter, is_async

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
        """The message's content as the filter leaves it; None before its end."""
        self.error: Exception | None = None
        """The filter's exception. It isn't the fault of the adapter."""
        self.unfinished = False
        """Whether the work was done and the filter was cut short."""
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
        """Filter some events, and deliver what passes; where the filter waits, that comes later."""
        if self.error is not None:  # an adapter that ignores its cancelling may still send
            return
        if self._at_once is None:
            self._arrived += events
            self._news.set()
            return
        try:
            passed = self._at_once(events)
        except StoppedAfter as stopped:
            self._hand_on(stopped.passed)
            self._fail(stopped.error)
            return
        except Exception as error:
            self._fail(error)
            return
        self._hand_on(passed)

    async def around(self, work: Callable[[], Awaitable[R]], deadline: float) -> R:
        """Wait for work that takes events in, and until all of them are filtered.

        Args:
            work: The work.
            deadline: The event loop's time until which the filter may take, once the work is done.

        Raises:
            Exception: The work's own.
        """
        if self._waiting is None:
            return await work()
        failure: Exception | None = None
        result: R | None = None
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._filter_arriving, self._waiting)
            try:
                result = await work()
            except Exception as error:  # in a group it would come out of it as another one
                failure = error
            self._all_arrived = True
            self._news.set()
            group.cancel_scope.deadline = -math.inf if self._cut else deadline
        self.unfinished = group.cancel_scope.cancelled_caught
        if failure is not None:
            raise failure
        return cast("R", result)

    def cut(self) -> None:
        """Filter no more: the call is cancelled."""
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
            except StoppedAfter as stopped:
                self._hand_on(stopped.passed)
                self._fail(stopped.error)
                return
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
        self.error = error
        self._stop()

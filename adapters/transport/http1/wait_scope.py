"""Cancel scopes for waits over connections of our own, at a third of what anyio's cost.

anyio cancels a task again and again until it has left its scope, and holds back where something inside shields
itself. Over our own connections neither is needed: nothing there catches a cancellation, or waits while it is
shielded. So the task is cancelled once, as `asyncio.timeout` does it. All other waits have anyio's scopes.

A scope is used again by later waits, together with its timer. That is looked at when it goes off, and set anew if
a later wait still has time.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

_MOST_KEPT = 64


class WaitScope:
    """The scope of one wait at a time. It is entered by `WaitScopes.until`.

    Args:
        loop: The event loop of the tasks that wait.
        kept: Where it is put when a wait is over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, kept: list[WaitScope]) -> None:
        self.loop = loop
        self._kept = kept
        self._deadline = math.inf
        self._task: asyncio.Task[object] | None = None  # that waits
        self._cancelling = 0  # what others have asked of the task, when its wait began
        self._waits = 0
        self._delivered = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def deadline(self) -> float:
        """The event loop's time at which the wait is cancelled."""
        return self._deadline

    @deadline.setter
    def deadline(self, at: float) -> None:
        self._deadline = at
        if at != math.inf and (self._timer is None or at < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(at, self._look)

    def cancel(self) -> None:
        """End the wait. If there is none any more, nothing happens."""
        self._cancel(self._waits)

    def _cancel(self, wait: int) -> None:
        task = self._task
        if task is None or wait != self._waits or self._delivered:
            return
        if asyncio.current_task(self.loop) is task:  # it would be cancelled wherever it waits next, here or not
            self.loop.call_soon(self._cancel, wait)
        else:
            self._delivered = True
            task.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._deadline <= self.loop.time():
            self.cancel()
        else:
            self.deadline = self._deadline

    def __enter__(self) -> Self:
        self._task = task = asyncio.current_task(self.loop)
        assert task is not None
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        delivered, self._delivered = self._delivered, False
        self._waits += 1
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(self)
        elif self._timer is not None:
            self._timer.cancel()
        if not delivered or task is None:
            return False
        return task.uncancel() <= self._cancelling and kind is asyncio.CancelledError


class WaitScopes:
    """The scopes of one adapter's waits."""

    def __init__(self) -> None:
        self._kept: list[WaitScope] = []

    def until(self, at: float) -> WaitScope:
        """A scope to enter at once. It is cancelled at the event loop's time `at`, if the wait takes so long."""
        loop = asyncio.get_running_loop()
        scope = self._kept.pop() if self._kept else WaitScope(loop, self._kept)
        if scope.loop is not loop:  # of a loop that ended
            self._kept.clear()
            scope = WaitScope(loop, self._kept)
        scope.deadline = at
        return scope

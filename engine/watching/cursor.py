"""One bounded row of calls from all engines of the process, in the order in which they came.

    an engine's loop                      any thread
    subscription of its bus ─ pump ─▶     the cursor: at most so many calls, the oldest dropped and counted
                                          │
                                          ▼ take, when somebody reads

Each engine has a reader of its own bus, on its own loop, so that the calls of one engine keep their order. Nothing
runs within a publisher.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import ref

import msgspec

from callboard.bus import DropOldest, LlmCallCompleted, LlmCallFailed, LlmCallStarted, Subscription

from ..runtime.process import LivingEngine, engines
from .ended_call import CallsOfEngine, EndedCall

_TOPICS = tuple(event.topic_of() for event in (LlmCallStarted, LlmCallCompleted, LlmCallFailed))

_PUMP_SECONDS = 1.0
"""How long somebody who leaves waits for an engine's loop to hand over what has ended."""


class CallCursor:
    """The calls that have ended and were not read yet. Any thread may use it.

    Args:
        capacity: The largest number of calls that wait.

    Raises:
        ValueError: The capacity is below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: must be at least 1")
        self.closed = False
        """Whether nothing more will come."""
        self._capacity = capacity
        self._calls: deque[EndedCall] = deque()
        self._skipped = 0
        self._changed = threading.Condition()
        self._waker: Callable[[], object] | None = None
        self._followed: list[_Followed] = []
        self._watcher = engines().watch(partial(_follow, ref(self)))

    def put(self, call: EndedCall) -> None:
        """Add a call."""
        with self._changed:
            if len(self._calls) == self._capacity:
                self._skipped += 1 + self._calls.popleft().skipped
            self._calls.append(call)
        self._tell()

    def take(self) -> EndedCall | None:
        """The oldest call; None if there is none."""
        with self._changed:
            if not self._calls:
                return None
            call = self._calls.popleft()
            skipped, self._skipped = self._skipped, 0
        return call if not skipped else msgspec.structs.replace(call, skipped=call.skipped + skipped)

    def wait(self, seconds: float | None) -> None:
        """Hold this thread up until a call has come, or the cursor is closed, or the time is over."""
        with self._changed:
            if not self._calls and not self.closed:
                self._changed.wait(seconds)

    async def changed(self) -> None:
        """Return when a call has come, or the cursor is closed."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            if self._calls or self.closed:
                return
            self._waker = partial(loop.call_soon_threadsafe, event.set)
        await event.wait()

    def add(self, followed: _Followed) -> bool:
        """Note a reader of an engine. Returns whether it is wanted."""
        with self._changed:
            if self.closed or any(each.living is followed.living for each in self._followed):
                return False
            self._followed = [each for each in self._followed if not each.over] + [followed]
            return True

    def close(self, *, waits: bool) -> None:
        """Take no more than what has ended by now.

        Args:
            waits: Whether this thread may be held up until other loops have handed that over.
        """
        with self._changed:
            followed = [] if self.closed else self._followed
        handed = [each.finish() for each in followed]
        for each in handed if waits else ():
            each.wait(_PUMP_SECONDS)
        with self._changed:
            self.closed = True
            self._followed = []
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            waker, self._waker = self._waker, None
            self._changed.notify_all()
        if waker is not None:
            with contextlib.suppress(RuntimeError):  # the reader's loop has ended
                waker()


class _Followed:
    """The reader of one engine's bus, on that engine's loop.

    Args:
        living: The bus.
        events: The subscription.
        cursor: Gets the calls.
    """

    def __init__(self, living: LivingEngine, events: Subscription, cursor: ref[CallCursor]) -> None:
        self.living = living
        self._events = events
        self._cursor = cursor
        self._calls = CallsOfEngine()
        self.task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self._events.closed

    async def run(self) -> None:
        """Hand over what comes, as long as somebody wants it."""
        with self._events:
            try:
                while not self._events.closed and self._cursor() is not None:
                    await self._events.wait()
                    self.pump()
            finally:
                self.pump()

    def pump(self) -> None:
        """Hand over what has come."""
        cursor = self._cursor()
        for envelope in self._events.take():
            call = self._calls.process(envelope)
            if call is not None and cursor is not None:
                cursor.put(call)

    def finish(self) -> threading.Event:
        """Hand over what has come, and end. Any thread may call this.

        Returns:
            An event that is set when that is done. It is set at once on the engine's own loop.
        """
        done = threading.Event()

        def end() -> None:
            self.pump()
            self._events.close()
            done.set()

        if _running_loop() is self.living.loop:
            end()
            return done
        try:
            self.living.loop.call_soon_threadsafe(end)
        except RuntimeError:  # that loop has ended
            done.set()
        return done


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _follow(cursor: ref[CallCursor], living: LivingEngine) -> None:
    """Begin to read an engine's bus. Any thread may call this."""
    if _running_loop() is living.loop:
        _begin(cursor, living)
    else:
        with contextlib.suppress(RuntimeError):  # that loop has ended
            living.loop.call_soon_threadsafe(_begin, cursor, living)


def _begin(cursor: ref[CallCursor], living: LivingEngine) -> None:
    """Begin on the engine's loop."""
    calls = cursor()
    if calls is None or calls.closed:
        return
    events = living.bus.subscribe(*_TOPICS, policy=DropOldest(4096), name="watch")
    followed = _Followed(living, events, cursor)
    if not calls.add(followed):
        events.close()
        return
    followed.task = living.loop.create_task(followed.run(), name="callboard watch")

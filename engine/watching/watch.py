"""Reports each call of the process when it ends, on any engine and event loop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeAlias
from weakref import ref

import msgspec

from callboard.adapters import ErrorClass, TokenUsage
from callboard.bus import (
    Cost,
    DropOldest,
    Envelope,
    Gap,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Subscription,
)
from callboard.bus.values.base import ShortRepr

from ..runtime.process import RunningEngine, engines

# --- An ended call ---


CallEnding: TypeAlias = Literal["completed", "failed", "cancelled"]


class EndedCall(ShortRepr, frozen=True, kw_only=True):
    """An ended call of any engine of this process, with all its attempts. `str()` returns one line."""

    run_id: str
    """The run id of the engine, as in the trace."""
    request_id: str
    """The id of the call."""
    operation: str | None
    """``chat``, ``embeddings``, ``image``, ``video_create`` or ``video``; None if the call started before the
    watch.
    """
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    status: CallEnding
    """How the call ended."""
    usage: TokenUsage | None
    """The tokens of the call's last attempt; None if unknown."""
    cost: Cost | None
    """The cost of the last attempt; None if its usage is unknown."""
    latency_ms: int
    """Milliseconds from the start of the call to its end."""
    first_token_ms: int | None
    """Milliseconds from the start of the call to its first content."""
    attempts: int
    """The number of the call's attempts."""
    error: str | None
    """The type and the text of the exception that ended the call."""
    session_id: str | None
    """The session that the call belongs to."""
    turn_id: str | None
    """The turn that the call belongs to."""
    tags: dict[str, str]
    """The tags of the call or of its session."""
    ended_us: int
    """The time of the call's end, in microseconds since the epoch, UTC."""
    skipped: int = 0
    """The number of calls before this one that were dropped, because they were not read in time."""

    def __str__(self) -> str:
        kind = "" if self.operation in (None, "chat") else f" {self.operation}"
        parts = [f"{self.model}{kind} {self.status}"]
        if self.error is not None:
            parts.append(self.error.split("\n", 1)[0][:200])
        if self.usage is not None:
            parts.append(f"{self.usage.total_input_tokens:,} + {self.usage.output_tokens:,} tokens")
            usd = None if self.cost is None else self.cost.usd
            parts.append("unpriced" if usd is None else f"${usd:f}")
        parts.append(f"{self.latency_ms / 1000:.1f} s")
        if self.skipped:
            parts.append(f"{self.skipped} earlier ones were not shown")
        return ", ".join(parts)


class CallsOfEngine:
    """Derives ended calls from an engine's events. It stores the fields that only a call's start has."""

    def __init__(self) -> None:
        self._operations: dict[str, str] = {}
        self._skipped = 0

    def process(self, envelope: Envelope) -> EndedCall | None:
        """The call that an event ends; None if another attempt follows, or if the event ends no call."""
        request_id = envelope.request_id or ""
        match envelope.data:
            case LlmCallStarted() as start:
                self._operations[request_id] = start.operation
                return None
            case LlmCallFailed(will_retry=True):
                return None
            case LlmCallCompleted() | LlmCallFailed() as end:
                skipped, self._skipped = self._skipped, 0
                return _ended(envelope, end, self._operations.pop(request_id, None), skipped)
            case Gap():
                self._skipped += envelope.data.count  # an upper limit, because starts of calls are also counted
                self._operations.clear()
                return None
            case _:
                return None


def _ended(
    envelope: Envelope, end: LlmCallCompleted | LlmCallFailed, operation: str | None, skipped: int
) -> EndedCall:
    status: CallEnding = "completed"
    error = None
    if isinstance(end, LlmCallFailed):
        status = "cancelled" if end.error_class == ErrorClass.CANCELLED else "failed"
        error = f"{end.error_type}: {end.message}"
    return EndedCall(
        run_id=envelope.run_id,
        request_id=envelope.request_id or "",
        operation=operation,
        provider=end.provider,
        model=end.model,
        status=status,
        usage=end.usage,
        cost=end.cost,
        latency_ms=end.latency_ms,
        first_token_ms=end.first_token_ms,
        attempts=envelope.attempt or 1,
        error=error,
        session_id=envelope.session_id,
        turn_id=envelope.turn_id,
        tags=dict(envelope.tags or {}),
        ended_us=envelope.ts_us,
        skipped=skipped,
    )


# --- Calls of all engines ---
#
#     an engine's loop                      any thread
#     subscription of its bus ─ pump ─▶     the cursor: at most so many calls, the oldest dropped and counted
#                                           │
#                                           ▼ take, when a reader requests it
#
# The reader of each engine's bus runs on that engine's own loop, so that the calls of one engine keep their order.
# Publishers never wait for it.


_TOPICS = tuple(event.topic_of() for event in (LlmCallStarted, LlmCallCompleted, LlmCallFailed))

_PUMP_SECONDS = 1.0
"""Seconds that `aclose` waits for an engine's loop to hand over the ended calls."""


class CallCursor:
    """Ended calls that were not read yet. Any thread may use it."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: must be at least 1")
        self.closed = False
        """Whether no more calls arrive."""
        self._capacity = capacity
        self._calls: deque[EndedCall] = deque()
        self._skipped = 0
        self._changed = threading.Condition()
        self._waker: Callable[[], object] | None = None
        self._followed: list[_Followed] = []
        self._watcher = engines().watch(partial(_follow, ref(self)))

    def put(self, call: EndedCall) -> None:
        with self._changed:
            if len(self._calls) == self._capacity:
                self._skipped += 1 + self._calls.popleft().skipped
            self._calls.append(call)
        self._report()

    def take(self) -> EndedCall | None:
        """The oldest call; None if there is none."""
        with self._changed:
            if not self._calls:
                return None
            call = self._calls.popleft()
            skipped, self._skipped = self._skipped, 0
        return call if not skipped else msgspec.structs.replace(call, skipped=call.skipped + skipped)

    def wait(self, seconds: float | None) -> None:
        """Block this thread until a call arrives, the cursor is closed, or the time is up."""
        with self._changed:
            if not self._calls and not self.closed:
                self._changed.wait(seconds)

    async def changed(self) -> None:
        """Wait until a call has arrived, or the cursor is closed."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            if self._calls or self.closed:
                return
            self._waker = partial(loop.call_soon_threadsafe, event.set)
        await event.wait()

    def add(self, followed: _Followed) -> bool:
        """Add a reader of an engine. Returns whether it is needed."""
        with self._changed:
            if self.closed or any(each.engine is followed.engine for each in self._followed):
                return False
            self._followed = [each for each in self._followed if not each.over] + [followed]
            return True

    def close(self, *, waits: bool) -> None:
        """Accept only calls that have already ended."""
        with self._changed:
            followed = [] if self.closed else self._followed
        handed = [each.finish() for each in followed]
        for each in handed if waits else ():
            each.wait(_PUMP_SECONDS)
        with self._changed:
            self.closed = True
            self._followed = []
        self._report()

    def _report(self) -> None:
        with self._changed:
            waker, self._waker = self._waker, None
            self._changed.notify_all()
        if waker is not None:
            with contextlib.suppress(RuntimeError):  # the reader's loop has ended
                waker()


class _Followed:
    """Reads one engine's bus, on that engine's loop."""

    def __init__(self, engine: RunningEngine, events: Subscription, cursor: ref[CallCursor]) -> None:
        self.engine = engine
        self._events = events
        self._cursor = cursor
        self._calls = CallsOfEngine()
        self.task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self._events.closed

    async def run(self) -> None:
        """Pass on each call while the reader is needed."""
        with self._events:
            try:
                while not self._events.closed and self._cursor() is not None:
                    await self._events.wait()
                    self.pump()
            finally:
                self.pump()

    def pump(self) -> None:
        """Pass on the calls that have arrived."""
        cursor = self._cursor()
        for envelope in self._events.take():
            call = self._calls.process(envelope)
            if call is not None and cursor is not None:
                cursor.put(call)

    def finish(self) -> threading.Event:
        """Pass on the calls that have arrived, and end. Any thread may call this."""
        done = threading.Event()

        def end() -> None:
            self.pump()
            self._events.close()
            done.set()

        if _running_loop() is self.engine.loop:
            end()
            return done
        try:
            self.engine.loop.call_soon_threadsafe(end)
        except RuntimeError:  # that loop has ended
            done.set()
        return done


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _follow(cursor: ref[CallCursor], engine: RunningEngine) -> None:
    """Start reading an engine's bus. Any thread may call this."""
    if _running_loop() is engine.loop:
        _begin(cursor, engine)
    else:
        with contextlib.suppress(RuntimeError):  # that loop has ended
            engine.loop.call_soon_threadsafe(_begin, cursor, engine)


def _begin(cursor: ref[CallCursor], engine: RunningEngine) -> None:
    """Start reading, on the engine's loop."""
    calls = cursor()
    if calls is None or calls.closed:
        return
    events = engine.bus.subscribe(*_TOPICS, policy=DropOldest(4096), name="watch")
    followed = _Followed(engine, events, cursor)
    if not calls.add(followed):
        events.close()
        return
    followed.task = engine.loop.create_task(followed.run(), name="callboard watch")


# --- Watching the process ---


_TICK = 0.2 if sys.platform == "win32" else None  # on Windows, an unlimited wait can't be interrupted


class Watch:
    """An async iterator over the calls of the process as they end. `watch()` creates it.

    The iterator yields every call that ends after the iterator was created, on existing and new engines. The calls
    of one engine are in order. At most `capacity` calls wait to be read. If more wait, the oldest are dropped, and
    the next call's `skipped` has their number. The iterator has no end. To stop it, leave the loop and drop the
    object. `aclose()` ends it for all its readers.

    Raises:
        ValueError: The capacity is below 1.
    """

    def __init__(self, capacity: int) -> None:
        self._cursor = CallCursor(capacity)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EndedCall:
        while (call := self._cursor.take()) is None:
            if self._cursor.closed:
                raise StopAsyncIteration
            await self._cursor.changed()
        return call

    async def aclose(self) -> None:
        """Accept no more calls. Waiting calls can still be read."""
        self._cursor.close(waits=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class SyncWatch:
    """Like `Watch`, but an iterator that blocks its thread until the next call ends.

        with watch_sync().each(print):
            generate_sync("sonnet", "A haiku, please.")

    Raises:
        ValueError: The capacity is below 1.
    """

    def __init__(self, capacity: int) -> None:
        self._cursor = CallCursor(capacity)
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EndedCall:
        while (call := self._cursor.take()) is None:
            if self._cursor.closed:
                raise StopIteration
            self._cursor.wait(_TICK)
        return call

    def each(self, function: Callable[[EndedCall], object]) -> Self:
        """Pass each call to a function, one after the other, in a separate thread.

        Calls do not wait for the function. If it raises an exception, the thread reports the exception as usual
        for threads, and stops.

        Args:
            function: A function that receives each call.
        """

        def read() -> None:
            for call in self:
                function(call)

        self._thread = threading.Thread(target=read, name="callboard-watch", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Accept only calls that have already ended, and wait until the function of `each` has received them."""
        self._cursor.close(waits=True)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch(*, capacity: int = 1024) -> Watch:
    """Watch each call of this process as it ends: ``async for call in watch(): print(call)``.

    The iterator includes every engine on every event loop, also engines created later, and every kind of call. A
    printed call is one line. The fields of `EndedCall` have the details. Without a watcher, calls have no
    overhead.

    Args:
        capacity: The maximum number of calls that wait to be read.

    Raises:
        ValueError: The capacity is below 1.
    """
    return Watch(capacity)


def watch_sync(*, capacity: int = 1024) -> SyncWatch:
    """Watch calls without an event loop: ``with watch_sync().each(print): …``, or iterate over it in a thread.

    Args:
        capacity: The maximum number of calls that wait to be read.

    Raises:
        ValueError: The capacity is below 1.
    """
    return SyncWatch(capacity)

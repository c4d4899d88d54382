"""The thread of the sync functions: one for the process, with its own event loop.

    caller's thread                     callboard-sync                       callboard-sync-watch (daemon)
    run(make) ── call_soon_threadsafe ─▶ task of make()                      main thread joined
       waits ◀────────── done ────────── its result                          callers' threads joined
                                         engines closed, loop closed ◀────── stop()

The first call starts the thread. The thread is not a daemon, so the interpreter waits for its end. A daemon
thread, ``callboard-sync-watch``, waits for the main thread to end, and then for the other threads that use sync
functions. Then it makes the loop close the engines. None of these steps may start a thread, because the
interpreter does not allow that at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, cast

from callboard.adapters import CallWarning, CanonicalResponse, ContentBlock, Message, TextDelta, TokenUsage
from callboard.bus import CallboardError, ConfigurationError, Cost, RoutingDecision, TurnStatus, WrongLoop
from callboard.bus.log import Log

from .conversation.results import GenerateResult
from .generation.readers import TreePiece
from .generation.streaming import StreamResult
from .generation.view import UsageSoFar
from .generation.view_events import ViewEvent

if TYPE_CHECKING:
    from .generation.object_stream import ObjectStream

T = TypeVar("T")
P = TypeVar("P")

_log = Log("engine.sync")

CANCEL_SECONDS = 10.0
"""Seconds that an interrupted caller waits for its call to end."""

CLOSE_SECONDS = 30.0
"""Seconds that an engine may take to close when the program ends. The engine's own limit, `Timeouts.shutdown`, is
shorter.
"""

_SAME_NAME = "await the async function instead, which has the same name without _sync"

_OTHER_LOOP = (
    "The sync functions use their own event loop. Leave engine= out, or create an engine for them with "
    "`with Engine() as engine`. In a coroutine, await engine.generate() and the other methods"
)

_ENDING = "the sync functions can't be called: the program is exiting"

_TICK = 0.2 if sys.platform == "win32" else None  # on Windows, an unlimited wait can't be interrupted


class Closing(Protocol):
    async def aclose(self) -> object: ...


class EngineLife(Closing, Protocol):
    def require_loop(self, instead: str = "") -> None:
        """Raise WrongLoop unless the object's own event loop runs here."""


class _Call(Generic[T]):
    """One coroutine on the host's loop, for the thread that waits for its result."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]], running: set[asyncio.Task[object]]) -> None:
        self._make = make
        self._running = running
        self._context = contextvars.copy_context()
        self._done = threading.Event()
        self._task: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        if self._done.is_set():
            return
        self._task = asyncio.get_running_loop().create_task(self._make(), context=self._context)
        self._running.add(cast("asyncio.Task[object]", self._task))
        self._task.add_done_callback(self._finished)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._done.is_set():
            self._end(CallboardError("the call was interrupted before it started"))

    def wait(self, seconds: float | None = None) -> bool:
        if seconds is not None or _TICK is None:
            return self._done.wait(seconds)
        while not self._done.wait(_TICK):
            pass
        return True

    def result(self) -> T:
        if isinstance(self._error, ConfigurationError):
            raise self._error.with_traceback(None)  # as in `Turn.run`
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _finished(self, task: asyncio.Task[T]) -> None:
        self._running.discard(cast("asyncio.Task[object]", task))
        if task.cancelled():
            self._end(CallboardError("the call was interrupted, or the program is exiting"))
        elif (error := task.exception()) is not None:
            self._end(error)
        else:
            self._value = task.result()
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._error, self._task = error, None
        self._done.set()


class SyncHost:
    """The thread of the sync functions, see the module's docstring. `sync_host()` returns the host of this
    process.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._stop = asyncio.Event()
        self._lock = threading.Lock()
        self._stopped = False
        self._callers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._calls: set[asyncio.Task[object]] = set()
        self._engines: weakref.WeakSet[EngineLife] = weakref.WeakSet()
        self._closing: weakref.WeakSet[Closing] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._main, name="callboard-sync", daemon=False)
        self._thread.start()
        threading.Thread(target=self._watch, name="callboard-sync-watch", daemon=True).start()
        self._up.wait()

    @property
    def alive(self) -> bool:
        return not self._stopped

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], *, name: str = "", instead: str = _SAME_NAME) -> T:
        """Run a coroutine on the host's loop, and return its result.

        An interrupt cancels the coroutine. Its exceptions are raised here.
        """
        self._check_thread(name, instead)
        call = _Call(make, self._calls)
        try:
            with self._lock:
                if self._stopped:
                    raise CallboardError(_ENDING)
                self._callers.add(threading.current_thread())
                self._loop.call_soon_threadsafe(call.start)
            call.wait()
        except CallboardError:
            raise
        except BaseException:  # usually KeyboardInterrupt
            with contextlib.suppress(RuntimeError):  # the loop is closed, which ended the call
                self._loop.call_soon_threadsafe(call.cancel)
            call.wait(CANCEL_SECONDS)
            raise
        return call.result()

    def keep(self, engine: EngineLife) -> None:
        """Run an engine on this loop. Close it at the end of the program, after all objects of `close_at_end`.
        Called on the loop.
        """
        engine.require_loop(_OTHER_LOOP)
        self._engines.add(engine)

    def close_at_end(self, what: Closing) -> None:
        """At the end of the program, close an object if it still exists. This is before the engines are closed."""
        self._closing.add(what)

    def _check_thread(self, name: str, instead: str) -> None:
        if threading.current_thread() is self._thread:
            raise WrongLoop(
                f"{name or 'it'} was called on the thread of the sync functions, for example by an async "
                f"tool, and would wait for itself: {instead}"
            )
        if not name:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        warnings.warn(
            f"{name} blocks the event loop of this thread until it returns. In a coroutine, {instead}",
            RuntimeWarning,
            stacklevel=4,
        )

    # --- The thread ---

    def _main(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        life = loop.create_task(self._live())
        while not life.done():
            try:
                loop.run_until_complete(life)
            except (SystemExit, KeyboardInterrupt) as error:  # asyncio also ends the loop when a task raises these
                _log.error("task_wants_to_exit", error=f"{type(error).__name__}: {error}")
        # not asyncio.run, which would start a thread to end the default executor
        loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _live(self) -> None:
        self._up.set()
        await self._stop.wait()
        await _cancel(self._calls)
        for what in (*self._closing, *self._engines):
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await what.aclose()
            except Exception as error:  # the others must still be closed
                _log.error("not_closed", what=type(what).__name__, error=f"{type(error).__name__}: {error}")

    def _watch(self) -> None:
        threading.main_thread().join()
        while users := self._open_callers():
            for thread in users:
                thread.join()
        self.stop()

    def _open_callers(self) -> list[threading.Thread]:
        with self._lock:
            return [thread for thread in self._callers if thread.is_alive() and not thread.daemon]

    def stop(self) -> None:
        """Cancel running work, close the engines, and end the loop and the thread. Another thread calls it. A
        second call does nothing.
        """
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait a limited time for them to end."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_SECONDS)


_host: SyncHost | None = None
_host_lock = threading.Lock()


def sync_host() -> SyncHost:
    """The process's host, started if needed."""
    global _host
    with _host_lock:
        if _host is None or not _host.alive:
            if not threading.main_thread().is_alive():
                raise CallboardError(_ENDING)
            _host = SyncHost()
        return _host


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the thread of the sync functions. Their engines also run there.

    Use it for methods without a sync version: ``run_sync(session.send("Hi"))``. Ctrl-C cancels the coroutine. Its
    exceptions are raised here.

    Args:
        coroutine: The coroutine.

    Returns:
        The coroutine's result.

    Raises:
        WrongLoop: This was called on that thread.
        CallboardError: The program is ending.
    """

    async def awaited() -> T:
        return await coroutine

    try:
        return sync_host().run(awaited, name="run_sync()", instead="await it")
    finally:
        coroutine.close()  # Does nothing if the coroutine has run.


def _forget_after_fork() -> None:
    """Forget the host in a child process. Its thread does not exist there, and its lock may have been held."""
    global _host, _host_lock
    _host, _host_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class SyncStream:
    """A stream that is used from another thread: a context manager that cancels on leaving."""

    def __init__(self, host: SyncHost, stream: StreamResult | ObjectStream[Any]) -> None:
        self._host = host
        self._base_stream = stream

    @property
    def stream_id(self) -> str:
        """The stream's id for `Engine.attach`."""
        return self._base_stream.stream_id

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """See `StreamResult.steer`. Any thread may call this."""
        return self._base_stream.steer(content)

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """See `StreamResult.undelivered`."""
        return self._base_stream.undelivered

    @property
    def usage(self) -> TokenUsage:
        """See `StreamResult.usage`."""
        return self._look(lambda stream: stream.usage)

    @property
    def cost(self) -> Cost:
        """See `StreamResult.cost`."""
        return self._look(lambda stream: stream.cost)

    @property
    def model(self) -> str | None:
        """See `StreamResult.model`."""
        return self._look(lambda stream: stream.model)

    @property
    def routing(self) -> RoutingDecision | None:
        """See `StreamResult.routing`."""
        return self._look(lambda stream: stream.routing)

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """See `StreamResult.warnings`."""
        return self._look(lambda stream: stream.warnings)

    @property
    def status(self) -> TurnStatus | None:
        """See `StreamResult.status`."""
        return self._look(lambda stream: stream.status)

    def _look(self, look: Callable[[StreamResult | ObjectStream[Any]], T]) -> T:
        """Read a property of the stream on the stream's own loop."""

        async def run() -> T:
            return look(self._base_stream)

        return self._host.run(run)

    def _through(self, pieces: AsyncIterator[P]) -> Iterator[P]:
        """Iterate over an async iterator that runs on the stream's own loop."""

        async def following() -> tuple[P] | None:
            async for piece in pieces:
                return (piece,)
            return None

        try:
            while (found := self._host.run(following)) is not None:
                yield found[0]
        except KeyboardInterrupt:
            self.close()
            raise

    def cancel(self) -> bool:
        """Cancel the call. Any thread may call this.

        Returns:
            False if the call has ended.
        """
        return self._host.run(self._base_stream.cancel)

    def close(self) -> None:
        """Cancel the turn if it is in progress, and wait until it has ended. A second call does nothing."""
        self._host.run(self._base_stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncTextPieces:
    """The text of a `SyncStreamResult`. It shares the stream's position."""

    def __init__(self, stream: SyncStreamResult) -> None:
        self._stream = stream

    def __call__(self, *, tree: Literal[True]) -> Iterator[TreePiece]:
        """The text of the turn together with the text of all turns that its tools start.

        Args:
            tree: True.
        """
        return self._stream._tree_text()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        while True:
            event = next(self._stream)
            if isinstance(event, TextDelta) and event.text:
                return event.text


class SyncStreamResult(SyncStream):
    """Like `StreamResult`, for one thread at a time: an iterator, and a context manager that cancels on leaving.

    with stream_sync("sonnet", "A haiku, please.") as result:
        for text in result.text_stream:
            print(text, end="")
    """

    def __init__(self, host: SyncHost, stream: StreamResult) -> None:
        super().__init__(host, stream)
        self._stream = stream
        self._batch: list[ViewEvent] = []
        self._index = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ViewEvent:
        if self._index >= len(self._batch):
            try:
                self._batch, self._index = self._host.run(self._stream.take), 0
            except KeyboardInterrupt:
                self.close()
                raise
            if not self._batch:
                raise StopIteration
        self._index += 1
        return self._batch[self._index - 1]

    @property
    def text_stream(self) -> SyncTextPieces:
        """Only the text, piece by piece. ``text_stream(tree=True)`` has the text of the tools' turns, too."""
        return SyncTextPieces(self)

    def _tree_text(self) -> Iterator[TreePiece]:
        return self._through(self._stream.text_stream(tree=True))

    @property
    def partial_response(self) -> CanonicalResponse | None:
        """See `StreamResult.partial_response`."""
        return self._look(lambda _: self._stream.partial_response)

    @property
    def usage_so_far(self) -> UsageSoFar:
        """See `StreamResult.usage_so_far`."""
        return self._look(lambda _: self._stream.usage_so_far)

    def response(self) -> CanonicalResponse:
        """See `StreamResult.response`."""
        return self._host.run(self._stream.response)

    def result(self) -> GenerateResult:
        """See `StreamResult.result`."""
        return self._host.run(self._stream.result)

    def close(self) -> None:
        """Cancel the turn if it is in progress, and wait until it has ended. A second call does nothing."""
        self._batch, self._index = [], 0
        super().close()

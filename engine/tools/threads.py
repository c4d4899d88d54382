"""Runs plain functions in daemon threads.

The interpreter waits for anyio's worker threads at its end, but a hanging tool must not keep a program from
ending. If the caller goes away, the function runs on, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

T = TypeVar("T")

WORKS_IN_THREADS = True
"""Marks a future that waits for a thread, so that an event loop on virtual time does not advance the clock."""

MAX_IDLE = 16
"""The number of threads that are kept for the next call."""

IDLE_SECONDS = 10.0
"""Seconds for which a thread waits for its next call before it ends."""

_Job: TypeAlias = Callable[[], Callable[[], None]]
"""A function that does the work and returns a function that delivers the result.

The latter is called last, when the thread is free again.
"""

_lock = threading.Lock()
_idle: list[_Worker] = []


class _Worker:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()

    def give(self, job: _Job) -> None:
        self._jobs.put(job)

    def start(self) -> None:
        threading.Thread(target=self._work, name="callboard tool", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            tell = job()
            with _lock:
                spare = len(_idle) >= MAX_IDLE
                if not spare:
                    _idle.append(self)
            tell()
            del job, tell  # Their objects must not stay alive until the next job.
            if spare:
                return

    def _next(self) -> _Job | None:
        try:
            return self._jobs.get(timeout=IDLE_SECONDS)
        except Empty:
            with _lock:
                if self in _idle:
                    _idle.remove(self)
                    return None
            return self._jobs.get()  # Another caller took this worker in that moment: a job is on its way.


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run a plain function in a thread, with the caller's context variables.

    If the caller is cancelled, the function runs on, and its result is dropped. An exception of the function is
    raised here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    if "sniffio" in sys.modules:  # or anyio would think that the loop runs in the thread, too
        context.run(sys.modules["sniffio"].current_async_library_cvar.set, None)

    def settle(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T may be None; there is one exactly without error

    def job() -> Callable[[], None]:
        result: T | None = None
        error: Exception | None = None
        try:
            result = context.run(work)
        except StopIteration as stopped:  # no future takes it
            error = RuntimeError(f"the function raised StopIteration: {stopped}")
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = RuntimeError(f"the function raised {type(raised).__name__}: {raised}")
        return lambda: tell(result, error)

    def tell(result: T | None, error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed, so no caller waits any more.
            loop.call_soon_threadsafe(settle, result, error)

    with _lock:
        worker = _idle.pop() if _idle else None
    if worker is None:
        worker = _Worker()
        worker.start()
    worker.give(job)
    return await future

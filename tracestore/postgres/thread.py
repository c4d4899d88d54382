"""A thread that works for an event loop: one function after the other, in the order in which they came.

It is a daemon, so a database that is left open never keeps the interpreter alive; the server undoes whatever was
under way. An executor's thread would not do: it takes no work any more while the host's own threads still shut
their engines down.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")
_Queue: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class WorkThread:
    """The thread, which starts with the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: _Queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run `work` in the thread. When the caller is cancelled, `work` still runs to its end."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()

        def told(result: _T | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            result: _T | None = None
            failed: BaseException | None = None
            try:
                result = work()
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(told, result, failed)

        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._waiting,), name=self._name, daemon=True)
            self._thread.start()
        self._waiting.put(job)
        return await done

    def stop(self) -> None:
        """End the thread after the work that is waiting. The next work starts another."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread, self._waiting = None, queue.SimpleQueue()


def _work(waiting: _Queue) -> None:
    while (job := waiting.get()) is not None:
        job()

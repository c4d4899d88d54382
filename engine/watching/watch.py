"""`watch`: each call of the whole process as it ends, whichever engine and event loop it belongs to."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from .cursor import CallCursor
from .ended_call import EndedCall

_TICK = 0.2 if sys.platform == "win32" else None  # where waiting without an end can't be interrupted


class Watch:
    """The calls of the process as they end, made by `watch()`: an async iterator.

    It has every call that ends from the moment at which it was made, of the engines that live and of those that
    come up. The calls of one engine come in their order. At most `capacity` calls wait to be read; what was
    dropped before a call is its `skipped`. It never ends by itself. Leaving a loop over it and forgetting it is
    enough; `aclose()` ends it for whoever still reads.

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
        """Take no more calls. What waits can still be read."""
        self._cursor.close(waits=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class SyncWatch:
    """Like `Watch`, for a thread: an iterator that holds its thread up until the next call ends.

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
        """Have a thread of its own read, and call a function with each call, one after the other.

        No call waits for the function. If it raises, the thread says so as threads do, and reads no more.

        Args:
            function: Gets each call.
        """

        def read() -> None:
            for call in self:
                function(call)

        self._thread = threading.Thread(target=read, name="callboard-watch", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Take no more calls than have ended by now, and return when the function of `each` has had them."""
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
    """Each call of this process as it ends: ``async for call in watch(): print(call)``.

    It covers every engine on every event loop, also those that come up later, and each kind of call. What is
    printed is one line; the fields of `EndedCall` have the rest. Nothing is paid for by calls while nobody
    watches.

    Args:
        capacity: The largest number of calls that wait to be read.

    Raises:
        ValueError: The capacity is below 1.
    """
    return Watch(capacity)


def watch_sync(*, capacity: int = 1024) -> SyncWatch:
    """`watch` for code without an event loop: ``with watch_sync().each(print): …``, or iterate it in a thread.

    Args:
        capacity: The largest number of calls that wait to be read.

    Raises:
        ValueError: The capacity is below 1.
    """
    return SyncWatch(capacity)

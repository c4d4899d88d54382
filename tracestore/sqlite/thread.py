"""Work in a connection's thread: a function goes there as a whole, and runs to its end whoever is cancelled."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from bus.log import Log

from .statements import Statements

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite

_T = TypeVar("_T")

_log = Log("tracestore.database")


class _Script(str):
    """A script for SQLite that is a function. Its text stands in aiosqlite's log."""

    __slots__ = ("work",)

    work: Callable[[Statements], object]


@functools.cache
def connection_type() -> type[sqlite3.Connection]:
    """A connection that runs a function as if it were a script.

    aiosqlite brings single statements to its thread, and has nothing public to bring a function there. But it says
    which class of connection is to be used, and calls that class's own methods in the thread: that is enough.
    """
    import sqlite3

    class Connection(sqlite3.Connection):
        def executescript(self, script: str, /) -> sqlite3.Cursor:
            if not isinstance(script, _Script):
                return super().executescript(script)
            script.work(Statements(self))
            return self.cursor()

    return Connection


async def in_thread(connection: aiosqlite.Connection, work: Callable[[Statements], _T]) -> _T:
    """Run `work` in the connection's thread. When the caller is cancelled, `work` still runs to its end."""
    done: list[_T] = []
    script = _Script("work of the trace store")
    script.work = lambda statements: done.append(work(statements))
    await connection.executescript(script)
    return done[0]


async def uninterrupted(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end, even if the caller is cancelled. Then the cancellation goes on."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    # The scope keeps anyio's cancellation out, the shield asyncio's own `task.cancel()`, which passes the scope.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                interrupted = error
            except BaseException:
                break
    if interrupted is not None and not task.cancelled():
        if task.exception() is not None:
            _log.warning("failed_while_cancelled", error=repr(task.exception()))
        raise interrupted
    return task.result()

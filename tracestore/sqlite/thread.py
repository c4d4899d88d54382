"""Work in a connection's thread: a function goes there as a whole, and runs to its end whoever is cancelled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .statements import Statements

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite

_T = TypeVar("_T")


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

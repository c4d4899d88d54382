"""Replies kept in a file of their own, for a cache in front of the calls. Content, so never in the trace file."""

from __future__ import annotations

from pathlib import Path

import anyio

from callboard.bus.errors import StoreError

from .sqlite.database import Database
from .sqlite.statements import Statements

APPLICATION_ID = 0x43414C52
"""``CALR``, in the header of every file of replies."""

_TIDY_EVERY = 64


class SavedReplies:
    """A store for `engine.middleware.Cache`, shared by all processes that name the same file.

    It opens by itself, and can be used again after `aclose()`. It belongs to one event loop. Its methods raise
    StoreError.

    Args:
        path: The file. It is made when it is needed, and only its owner may read it.
        most: The largest number of replies. Beyond it, replies that expire first are deleted.
    """

    def __init__(self, path: Path | str, *, most: int = 100_000) -> None:
        self._database = Database(Path(path).expanduser())
        self._most = most
        self._puts = 0
        self._opening = anyio.Lock()

    async def get(self, key: str, now_us: int) -> bytes | None:
        """The reply of a key; None if there is none, or if it has expired.

        Args:
            key: The key.
            now_us: The present moment, in microseconds since the epoch.
        """
        await self._open()
        rows = await self._database.read("SELECT reply FROM replies WHERE key = ? AND until_us > ?", (key, now_us))
        return rows[0][0] if rows else None

    async def put(self, key: str, reply: bytes, now_us: int, until_us: int) -> None:
        """Keep a reply in place of an earlier one.

        Args:
            key: The key.
            reply: The reply.
            now_us: The present moment, in microseconds since the epoch.
            until_us: The moment at which the reply expires, in microseconds since the epoch.
        """
        await self._open()
        tidy = self._puts % _TIDY_EVERY == 0
        self._puts += 1

        def work(statements: Statements) -> None:
            statements.run("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (key, until_us, reply))
            if tidy:
                statements.run("DELETE FROM replies WHERE until_us <= ?", (now_us,))
                statements.run(
                    "DELETE FROM replies WHERE key IN (SELECT key FROM replies ORDER BY until_us LIMIT "
                    "max(0, (SELECT count(*) FROM replies) - ?))",
                    (self._most,),
                )

        await self._database.write(work)

    async def aclose(self) -> None:
        """Close the file. Idempotent."""
        await self._database.close()

    async def _open(self) -> None:
        if not self._database.is_open:
            async with self._opening:
                await self._database.open(_prepare)


async def _prepare(database: Database) -> None:
    """Make the table in an empty file. Raises StoreError, and changes nothing, if the file is something else."""
    ((application,),) = await database.read("PRAGMA application_id")
    ((tables,),) = await database.read("SELECT count(*) FROM sqlite_schema")
    if application == APPLICATION_ID:
        return
    if application or tables:
        raise StoreError(f"{database.path} holds something else than saved replies; name another file for them")

    def make(statements: Statements) -> None:
        statements.run(
            "CREATE TABLE IF NOT EXISTS replies "
            "(key TEXT PRIMARY KEY, until_us INTEGER NOT NULL, reply BLOB NOT NULL) WITHOUT ROWID"
        )
        statements.run("CREATE INDEX IF NOT EXISTS replies_by_end ON replies (until_us)")
        statements.run(f"PRAGMA application_id = {APPLICATION_ID}")

    await database.write(make)

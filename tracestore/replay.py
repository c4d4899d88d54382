"""Stored events as the source of a replay, and a file of replies for a cache in front of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import anyio
import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope, Event, UnknownEvent
from callboard.bus.events.codec import decode_as
from callboard.bus.subscription import check_pattern, topic_matches

from .sqlite.database import Database
from .sqlite.statements import Statements
from .store import Store

# --- Replaying stored events ---
#
#   async with Bus.replay(StoredEvents(store, session_id="ses_…"), speed=1.0) as bus:
#       ...
#
# Events are read in pages, so memory is limited to one page, and other users of the store can work between pages.


PAGE = 500


class StoredEvents:
    """The events of a trace that were stored at the start of the iteration, in the order of storing.

    Within a run, this is the order of `seq`. An event must match all filters. A filter that is None matches every
    event. Each iteration reads the trace again, and raises StoreError if it can't be read.

    Args:
        store: The trace.
        run_id: The id of the run.
        session_id: The id of the session.
        request_id: The id of the request.
        topics: Patterns of topics, as `Bus.subscribe` takes them.
        since: The first moment, in microseconds since the epoch or as an aware datetime.
        until: The moment after the last one, in the same forms.
        types: The types of a host's own events. Events of other unknown topics are `UnknownEvent`.
        page: The number of events that are read at a time.

    Raises:
        ValueError: A pattern can match nothing, or `page` is below 1.
    """

    def __init__(
        self,
        store: Store,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        request_id: str | None = None,
        topics: Sequence[str] = (),
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        types: Sequence[type[Event]] = (),
        page: int = PAGE,
    ) -> None:
        if page < 1:
            raise ValueError(f"page={page}: must be at least 1")
        for pattern in topics:
            check_pattern(pattern)
        self.store = store
        self.run_id = run_id
        self.session_id = session_id
        self.request_id = request_id
        self.topics = tuple(topics)
        self.since = since
        self.until = until
        self.page = page
        self._types = {kind.topic_of(): kind for kind in types}

    def __aiter__(self) -> _Pages:
        return _Pages(self, self._types)


class _Pages:
    def __init__(self, query: StoredEvents, types: Mapping[str, type[Event]]) -> None:
        self._query = query
        self._types = types
        self._page: list[tuple[int, Envelope]] = []
        self._next = 0
        self._after_id = 0
        self._last_id: int | None = None

    def __aiter__(self) -> _Pages:
        return self

    async def __anext__(self) -> Envelope:
        if self._last_id is None:
            self._last_id = await self._query.store.last_event_id()
        while True:
            while self._next < len(self._page):
                number, envelope = self._page[self._next]
                if number > self._last_id:
                    raise StopAsyncIteration
                self._next += 1
                if self._is_wanted(envelope.topic):
                    return self._typed(envelope)
            await self._read()

    async def _read(self) -> None:
        """Read the next page. Raises StopAsyncIteration after the last."""
        query = self._query
        if self._page:
            self._after_id = self._page[-1][0]
        if self._next and self._next < query.page:
            raise StopAsyncIteration  # the previous page was the last
        self._page = await query.store.numbered_events(
            run_id=query.run_id,
            session_id=query.session_id,
            request_id=query.request_id,
            topic=_glob(query.topics),
            since=query.since,
            until=query.until,
            after_id=self._after_id,
            limit=query.page,
        )
        self._next = 0
        if not self._page:
            raise StopAsyncIteration

    def _is_wanted(self, topic: str) -> bool:
        topics = self._query.topics
        return not topics or any(topic_matches(pattern, topic) for pattern in topics)

    def _typed(self, envelope: Envelope) -> Envelope:
        data = envelope.data
        if isinstance(data, UnknownEvent) and (kind := self._types.get(data.topic)) is not None:
            return msgspec.structs.replace(envelope, data=decode_as(kind, data))
        return envelope


def _glob(topics: Sequence[str]) -> str | None:
    """A pattern that matches at least all events of the topics; None if there is none."""
    if len(topics) != 1 or any(sign in topics[0] for sign in "?["):
        return None
    return topics[0].replace(">", "*")


# --- A cache of replies ---
#
# Replies are content, so they are in a separate file and never in the trace file.


APPLICATION_ID = 0x43414C52
"""``CALR``, in the header of every file of replies."""

_TIDY_EVERY = 64


class SavedReplies:
    """A store for `engine.middleware.Cache`. All processes with the same file share it.

    The first use opens the file, also after `aclose()`. The object belongs to one event loop. Its methods raise
    StoreError.

    Args:
        path: The file. It is created at the first use, and only its owner may read it.
        most: The largest number of replies. Above it, the replies that expire first are deleted.
    """

    def __init__(self, path: Path | str, *, most: int = 100_000) -> None:
        self._database = Database(Path(path).expanduser())
        self._most = most
        self._puts = 0
        self._opening = anyio.Lock()

    async def get(self, key: str, now_us: int) -> bytes | None:
        """Return the reply with a key; None if there is none, or if the reply has expired.

        Args:
            key: The key.
            now_us: The present moment, in microseconds since the epoch.
        """
        await self._open()
        rows = await self._database.read("SELECT reply FROM replies WHERE key = ? AND until_us > ?", (key, now_us))
        return rows[0][0] if rows else None

    async def put(self, key: str, reply: bytes, now_us: int, until_us: int) -> None:
        """Store a reply, replacing an earlier one with this key.

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
    """Create the table in an empty file. Raises StoreError for a file of another kind, which is not changed."""
    ((application,),) = await database.read("PRAGMA application_id")
    ((tables,),) = await database.read("SELECT count(*) FROM sqlite_schema")
    if application == APPLICATION_ID:
        return
    if application or tables:
        raise StoreError(f"{database.path} is not a file of saved replies. Choose another file")

    def make(statements: Statements) -> None:
        statements.run(
            "CREATE TABLE IF NOT EXISTS replies "
            "(key TEXT PRIMARY KEY, until_us INTEGER NOT NULL, reply BLOB NOT NULL) WITHOUT ROWID"
        )
        statements.run("CREATE INDEX IF NOT EXISTS replies_by_end ON replies (until_us)")
        statements.run(f"PRAGMA application_id = {APPLICATION_ID}")

    await database.write(make)

"""The common part of all stores on an SQL database, with the ledger of imports.

The ledger has the imported calls of a trace, and the reading position in each file. A call has one row in
`imported_calls` for as long as the trace exists, even after the call was pruned. So if a file is read again, no
call is imported twice, and no pruned call returns. The rows are written in the transaction of the call's event,
and only if no other importer has changed them. So if two importers read the same files, each call is imported
once. After a kill, the trace has both the row and the event, or neither. The same check protects deletions: a
session that was just deleted, or a call that was just pruned, is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import anyio

from callboard.bus.clock import Clock, to_us
from callboard.bus.events import Envelope
from callboard.bus.values.messages import Message

from ..call_columns import CallFilter, CallRow
from ..prices.table import PriceTable
from ..reports import CurrentPrices, OnProgress, PruneReport, RepriceReport, RepriceRun
from ..rows import (
    CostRow,
    CountedCall,
    ErrorRow,
    Imported,
    ImportedFile,
    OpenReply,
    Revision,
    SavedSession,
    SessionRow,
    Spending,
    SpendingQuery,
    StatisticsRow,
    StoredBatch,
    StoredJob,
)
from ..store import Store
from . import listing, pricing, repricing
from .connection import Database, SqlValue, Statements, at_most, in_parts, placeholders
from .content import load_session
from .events import COLUMNS, batch, batches, counted_calls, envelope, job, open_replies

if TYPE_CHECKING:
    from .pruning import Pruning


_FILE = tuple(ImportedFile.__struct_fields__)
"""The columns of `imported_files`."""


class SqlStore(Store, Protocol):
    """A store in an SQL `Database`. Subclasses add opening, writing and the condition."""

    _database: Database
    _clock: Clock
    _repricing: anyio.Lock
    """Held by each repricing, so that the last of several is current."""
    _sweep_before_us: int | None = None
    """The time before which unneeded bodies are deleted with a session; None means the present time."""

    async def _take_in(self, *, needed: bool = False) -> None:
        """Store the events that dead processes left. On failure, raise StoreError if `needed`, or else warn."""

    async def _write_with(self, envelopes: Sequence[Envelope], first: Callable[[Statements], None]) -> None:
        """Store events, and run `first` before them in the same transaction. If it raises, nothing is stored."""

    async def _erased(self) -> None:
        """Remove the bytes that a deletion left in the database."""

    def _for_repricing(self) -> AbstractAsyncContextManager[Database]:
        """The database over one connection, because temporary tables belong to a connection."""
        return nullcontext(self._database)

    def _pruning(self, progress: Callable[[PruneReport], object] | None) -> Pruning: ...

    def _pruned(self) -> None:
        """Drop cached facts about rows that a pruning may have deleted."""

    async def committed_seq(self, run_id: str) -> int:
        rows = await self._database.read("SELECT committed_seq FROM runs WHERE run_id = ?", (run_id,))
        return int(rows[0][0]) if rows else 0

    # --- Imports ---

    async def imported_calls(self, request_ids: Sequence[str]) -> dict[str, Imported]:
        found: dict[str, Imported] = {}
        for some in in_parts(request_ids):
            rows = await self._database.read(
                f"""
                SELECT i.request_id, i.revision,
                       EXISTS (SELECT 1 FROM calls AS c WHERE c.request_id = i.request_id AND c.attempt = 1)
                  FROM imported_calls AS i
                 WHERE i.request_id IN ({placeholders(len(some))})
                """,
                some,
            )
            found |= {request_id: Imported(int(revision), bool(stored)) for request_id, revision, stored in rows}
        return found

    async def imported_files(self, source: str) -> dict[str, ImportedFile]:
        rows = await self._database.read(
            f"SELECT {', '.join(_FILE)} FROM imported_files WHERE source = ?", (source,)
        )
        files = (ImportedFile(**dict(zip(_FILE, row, strict=True))) for row in rows)
        return {file.path: file for file in files}

    async def deleted_sessions(self, session_ids: Sequence[str]) -> set[str]:
        return await self._database.look(lambda statements: _deleted(statements, session_ids))

    async def write_import(
        self, envelopes: Sequence[Envelope], revisions: Sequence[Revision], files: Sequence[ImportedFile]
    ) -> bool:
        try:
            await self._write_with(
                envelopes, lambda statements: _note_import(statements, envelopes, revisions, files)
            )
        except _ImportConflict:
            return False
        return True

    # --- Calls and events ---

    async def calls(
        self, where: CallFilter | None = None, limit: int | None = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        sql, values = listing.calls_query(where, under, limit, self._database.dialect)
        return [listing.call_row(row) for row in await self._database.read(sql, values)]

    async def calls_after(
        self, call_id: int, where: CallFilter | None = None, limit: int = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        sql, values = listing.calls_after_query(where, under, call_id, limit, self._database.dialect)
        return [listing.call_row(row) for row in await self._database.read(sql, values)]

    async def events(
        self,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        request_id: str | None = None,
        topic: str | None = None,
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        after_id: int = 0,
        limit: int | None = 1000,
    ) -> list[Envelope]:
        rows = await self.numbered_events(
            run_id=run_id,
            session_id=session_id,
            request_id=request_id,
            topic=topic,
            since=since,
            until=until,
            after_id=after_id,
            limit=limit,
        )
        return [event for _, event in rows]

    async def numbered_events(
        self,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        request_id: str | None = None,
        topic: str | None = None,
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        after_id: int = 0,
        limit: int | None = 1000,
    ) -> list[tuple[int, Envelope]]:
        conditions: list[tuple[str, SqlValue]] = [("e.id > ?", after_id)]
        ids = {"r.run_id = ?": run_id, "e.session_id = ?": session_id, "e.request_id = ?": request_id}
        conditions += [(sql, value) for sql, value in ids.items() if value is not None]
        if topic is not None:
            conditions.append(self._database.dialect.like_topic("e.topic", topic))
        if since is not None:
            conditions.append(("e.ts_us >= ?", to_us(since)))
        if until is not None:
            conditions.append(("e.ts_us < ?", to_us(until)))
        limited, most = at_most(limit)
        rows = await self._database.read(
            f"""
            SELECT e.id, {", ".join(COLUMNS.values())}
              FROM events AS e
              JOIN runs AS r ON r.id = e.run
             WHERE {" AND ".join(sql for sql, _ in conditions)}
             ORDER BY e.id
             {limited}
            """,
            [*(value for _, value in conditions), *most],
        )
        return [(row[0], envelope(row[1:])) for row in rows]

    async def run_events(self, run_id: str, after_seq: int = 0, limit: int = 1000) -> list[Envelope]:
        rows = await self._database.read(
            f"""
            SELECT {", ".join(COLUMNS.values())}
              FROM events AS e
              JOIN runs AS r ON r.id = e.run
             WHERE r.run_id = ? AND e.seq > ?
             ORDER BY e.seq
             LIMIT ?
            """,
            (run_id, after_seq, limit),
        )
        return list(map(envelope, rows))

    async def run_positions(self, since: int | datetime) -> dict[str, int]:
        rows = await self._database.read(
            "SELECT run_id, committed_seq FROM runs WHERE ended_us IS NULL OR last_us >= ?", (to_us(since),)
        )
        return dict(rows)

    async def last_event_id(self) -> int:
        rows = await self._database.read("SELECT coalesce(max(id), 0) FROM events")
        return int(rows[0][0])

    async def job(self, provider: str, job_id: str) -> StoredJob:
        return await job(self._database, provider, job_id)

    async def open_replies(self, session_id: str | None = None, *, owned: bool = False) -> list[OpenReply]:
        return await open_replies(self._database, session_id, owned=owned)

    async def batch(self, batch_id: str) -> StoredBatch | None:
        return await batch(self._database, batch_id)

    async def batches(self, limit: int = 100) -> list[StoredBatch]:
        return await batches(self._database, limit)

    async def counted_calls(self, request_ids: Sequence[str]) -> dict[str, CountedCall]:
        return await counted_calls(self._database, request_ids)

    # --- Sums ---

    async def costs(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",), *, under: str | None = None
    ) -> list[CostRow]:
        return await listing.costs(self._database, where or CallFilter(), by, under)

    async def statistics(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",)
    ) -> list[StatisticsRow]:
        return await listing.statistics(self._database, where or CallFilter(), by)

    async def errors(self, where: CallFilter | None = None) -> list[ErrorRow]:
        return await listing.errors(self._database, where or CallFilter())

    async def spending(self, queries: Sequence[SpendingQuery], run_id: str) -> Spending:
        return await self._database.look(lambda statements: listing.spending(statements, queries, run_id))

    # --- Sessions ---

    async def sessions(
        self, limit: int | None = 1000, *, tags: Mapping[str, str] | None = None
    ) -> list[SessionRow]:
        return await listing.sessions(self._database, limit, tags)

    async def saved_session(self, session_id: str) -> SavedSession | None:
        return await self._database.look(lambda statements: load_session(statements, session_id))

    async def session_owner(self, session_id: str, run_id: str) -> tuple[str | None, int]:
        ((name, committed),) = await self._database.read(
            """
            SELECT (SELECT r.run_id
                      FROM session_setups AS s JOIN runs AS r ON r.id = s.run
                     WHERE s.session_id = ?),
                   coalesce((SELECT committed_seq FROM runs WHERE run_id = ?), 0)
            """,
            (session_id, run_id),
        )
        return name, int(committed)

    async def was_answered(self, session_id: str) -> bool:
        rows = await self._database.read(
            """
            SELECT 1 FROM sessions AS s JOIN calls AS c ON c.session_id = s.session_id
             WHERE s.session_id = ? AND (c.status = 'completed' OR c.error_class = 'process_lost')
             LIMIT 1
            """,
            (session_id,),
        )
        return bool(rows)

    async def messages(self, session_id: str) -> list[Message]:
        saved = await self.saved_session(session_id)
        return [] if saved is None else list(saved.messages)

    async def delete_session(self, session_id: str) -> bool:
        from .expiry import delete_session

        await self._take_in(needed=True)
        found = await delete_session(self._database, session_id, self._clock.now_us(), self._sweep_before_us)
        await self._erased()
        return found

    async def forget_content(self, before: int | datetime) -> int:
        from .expiry import forget_content

        before_us, now = to_us(before), self._clock.now_us()
        await self._take_in(needed=True)
        bodies = await forget_content(self._database, before_us, now)
        await self._erased()
        return bodies

    # --- Prices and retention ---

    async def reprice(
        self,
        table: PriceTable | str,
        *,
        where: CallFilter | None = None,
        dry_run: bool = False,
        as_model: str | None = None,
        by_session: bool = False,
        progress: OnProgress | None = None,
    ) -> RepriceReport:
        async with self._repricing, self._for_repricing() as database:
            if isinstance(table, str):
                table = await pricing.stored_table(database, table)
            run = repricing.Repricing(
                *(database, self._clock, table, where or CallFilter(), as_model),
                by_session=by_session,
                progress=progress,
            )
            return await run.run(dry=dry_run or as_model is not None)

    async def resume_reprice(
        self, run_id: int | None = None, *, progress: OnProgress | None = None
    ) -> RepriceReport:
        async with self._repricing, self._for_repricing() as database:
            started = await repricing.interrupted(database, run_id)
            table = await pricing.stored_table(database, started.version)
            run = repricing.Repricing(
                *(database, self._clock, table, started.where, None),
                by_session=started.by_session,
                progress=progress,
            )
            return await run.resume(started)

    async def undo_reprice(self) -> RepriceRun:
        return await repricing.undo(self._database, self._clock.now_us())

    async def use_prices(self, version: str | None) -> None:
        await pricing.use_prices(self._database, version)

    async def current_prices(self) -> CurrentPrices:
        return await repricing.current_prices(self._database)

    async def current_version(self) -> str | None:
        return await self._database.look(pricing.current_version)

    async def price_table(self, version: str) -> PriceTable:
        return await pricing.stored_table(self._database, version)

    async def price_tables(self) -> list[PriceTable]:
        return await pricing.stored_tables(self._database)

    async def reprice_runs(self) -> list[RepriceRun]:
        return await repricing.history(self._database)

    async def prune(
        self,
        *,
        before: int | datetime | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
        vacuum: bool = False,
        progress: Callable[[PruneReport], object] | None = None,
    ) -> PruneReport:
        moment = None if before is None else to_us(before)
        if not dry_run:
            await self._take_in()
        try:
            return await self._pruning(progress).run(moment, max_bytes, dry=dry_run, vacuum=vacuum)
        finally:
            self._pruned()


# --- The ledger of imports, within a transaction ---


_UPDATE = "UPDATE imported_calls SET revision = ? WHERE request_id = ? AND revision = ?"
_AND_STORED = """
   AND EXISTS (SELECT 1 FROM calls AS c WHERE c.request_id = imported_calls.request_id AND c.attempt = 1)
"""


class _ImportConflict(Exception):
    """The trace has changed since the importer read it. Nothing was written."""


def _deleted(statements: Statements, session_ids: Sequence[str]) -> set[str]:
    return {
        name
        for some in in_parts(session_ids)
        for (name,) in statements.run(
            f"SELECT session_id FROM erasures WHERE session_id IN ({placeholders(len(some))})", some
        )
    }


def _note_import(
    statements: Statements,
    envelopes: Sequence[Envelope],
    revisions: Sequence[Revision],
    files: Sequence[ImportedFile],
) -> None:
    """Change the ledger. Raises _ImportConflict if ledger, sessions or calls have changed since they were read."""
    if _deleted(statements, sorted({each.session_id for each in envelopes if each.session_id is not None})):
        raise _ImportConflict
    corrected = {each.request_id for each in envelopes}
    ordered = sorted(revisions)  # sorted, so that two importers can't deadlock
    for some in in_parts([each for each in ordered if each.before is None]):
        rows = ", ".join(["(?, CAST(? AS BIGINT))"] * len(some))
        values: list[SqlValue] = [value for each in some for value in (each.request_id, each.after)]
        entered = statements.change(
            f"INSERT INTO imported_calls (request_id, revision) VALUES {rows} ON CONFLICT DO NOTHING", values
        )
        if entered != len(some):
            raise _ImportConflict
    for each in ordered:
        if each.before is not None and not statements.change(
            _UPDATE + (_AND_STORED if each.request_id in corrected else ""),
            (each.after, each.request_id, each.before),
        ):
            raise _ImportConflict
    changes = ", ".join(f"{name} = excluded.{name}" for name in _FILE[2:])
    statements.run_many(
        f"""
        INSERT INTO imported_files ({", ".join(_FILE)}) VALUES ({placeholders(len(_FILE))})
        ON CONFLICT (source, path) DO UPDATE SET {changes}
        """,
        [[getattr(file, name) for name in _FILE] for file in files],
    )

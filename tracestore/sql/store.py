"""The common part of all stores on an SQL database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from callboard.bus.clock import Clock, to_us
from callboard.bus.events import Envelope
from callboard.bus.values.messages import Message

from ..call_columns import CallFilter, CallRow
from ..prices.table import PriceTable
from ..reports import CurrentPrices, RepriceRun
from ..rows import (
    CostRow,
    CountedCall,
    ErrorRow,
    Imported,
    ImportedFile,
    OpenReply,
    SavedSession,
    SessionRow,
    Spending,
    SpendingQuery,
    StatisticsRow,
    StoredBatch,
    StoredJob,
)
from ..store import Store
from . import pricing as prices
from . import repricing as history
from .connection import Database
from .content import load_session, was_answered
from .events import (
    RUN_EVENTS,
    RUN_POSITIONS,
    batch,
    batches,
    counted_calls,
    envelope,
    events_query,
    job,
    open_replies,
    owner,
)
from .imports import deleted_sessions, imported_calls, imported_files
from .listing import call_row, calls_after_query, calls_query, costs, sessions


class SqlStore(Store, Protocol):
    """A store in an SQL `Database`. Subclasses add opening, writing, repricing and upkeep."""

    _database: Database
    _clock: Clock

    async def committed_seq(self, run_id: str) -> int:
        rows = await self._database.read("SELECT committed_seq FROM runs WHERE run_id = ?", (run_id,))
        return int(rows[0][0]) if rows else 0

    async def imported_calls(self, request_ids: Sequence[str]) -> dict[str, Imported]:
        return await imported_calls(self._database, request_ids)

    async def imported_files(self, source: str) -> dict[str, ImportedFile]:
        return await imported_files(self._database, source)

    async def deleted_sessions(self, session_ids: Sequence[str]) -> set[str]:
        return await deleted_sessions(self._database, session_ids)

    async def calls(
        self, where: CallFilter | None = None, limit: int | None = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        sql, values = calls_query(where, under, limit, self._database.dialect)
        return [call_row(row) for row in await self._database.read(sql, values)]

    async def calls_after(
        self, call_id: int, where: CallFilter | None = None, limit: int = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        sql, values = calls_after_query(where, under, call_id, limit, self._database.dialect)
        return [call_row(row) for row in await self._database.read(sql, values)]

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
        return [envelope for _, envelope in rows]

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
        sql, values = events_query(
            self._database.dialect,
            run_id=run_id,
            session_id=session_id,
            request_id=request_id,
            topic=topic,
            since=since,
            until=until,
            after_id=after_id,
            limit=limit,
        )
        return [(row[0], envelope(row[1:])) for row in await self._database.read(sql, values)]

    async def run_events(self, run_id: str, after_seq: int = 0, limit: int = 1000) -> list[Envelope]:
        rows = await self._database.read(RUN_EVENTS, (run_id, after_seq, limit))
        return [envelope(row) for row in rows]

    async def run_positions(self, since: int | datetime) -> dict[str, int]:
        return dict(await self._database.read(RUN_POSITIONS, (to_us(since),)))

    async def last_event_id(self) -> int:
        rows = await self._database.read("SELECT coalesce(max(id), 0) FROM events", [])
        return int(rows[0][0])

    async def sessions(
        self, limit: int | None = 1000, *, tags: Mapping[str, str] | None = None
    ) -> list[SessionRow]:
        return await sessions(self._database, limit, tags)

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

    async def costs(
        self,
        where: CallFilter | None = None,
        by: Sequence[str] = ("model",),
        *,
        under: str | None = None,
    ) -> list[CostRow]:
        return await costs(self._database, where or CallFilter(), by, under)

    async def statistics(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",)
    ) -> list[StatisticsRow]:
        from .listing import statistics

        return await statistics(self._database, where or CallFilter(), by)

    async def errors(self, where: CallFilter | None = None) -> list[ErrorRow]:
        from .listing import errors

        return await errors(self._database, where or CallFilter())

    async def spending(self, queries: Sequence[SpendingQuery], run_id: str) -> Spending:
        from .listing import spending

        return await self._database.look(lambda statements: spending(statements, queries, run_id))

    async def saved_session(self, session_id: str) -> SavedSession | None:
        return await self._database.look(lambda statements: load_session(statements, session_id))

    async def session_owner(self, session_id: str, run_id: str) -> tuple[str | None, int]:
        return await owner(self._database, session_id, run_id)

    async def was_answered(self, session_id: str) -> bool:
        return await was_answered(self._database, session_id)

    async def messages(self, session_id: str) -> list[Message]:
        saved = await self.saved_session(session_id)
        return [] if saved is None else list(saved.messages)

    async def undo_reprice(self) -> RepriceRun:
        return await history.undo(self._database, self._clock.now_us())

    async def use_prices(self, version: str | None) -> None:
        await prices.use_prices(self._database, version)

    async def current_prices(self) -> CurrentPrices:
        return await history.current_prices(self._database)

    async def current_version(self) -> str | None:
        return await self._database.look(prices.current_version)

    async def price_table(self, version: str) -> PriceTable:
        return await prices.stored_table(self._database, version)

    async def price_tables(self) -> list[PriceTable]:
        return await prices.stored_tables(self._database)

    async def reprice_runs(self) -> list[RepriceRun]:
        return await history.history(self._database)

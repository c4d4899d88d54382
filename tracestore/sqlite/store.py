"""The trace store: events go in, calls, sessions and costs come out.

One file, one connection, one process writing at a time. Events are the truth and append-only; everything that is
queried is derived from them in the same transaction, so the two never disagree. No event is stored with content:
of a message that was appended its position, role and id remain. What the writer captures is kept beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from bus.clock import SYSTEM_CLOCK, Clock
from bus.events.envelope import Envelope
from bus.values.messages import Message

from ..prices.table import PriceTable
from ..queries import CallFilter, CallRow, call_row, calls_after_query, calls_query
from ..reports import RepriceReport
from ..sql.calls.costs import CostRow, costs
from ..sql.content import SavedSession, load_session
from ..sql.events import envelope, events_query
from ..sql.jobs import StoredJob, job
from ..sql.projection import RunSpan
from ..sql.repricing import history as reprice_runs
from ..sql.repricing import prices as stored_prices
from ..sql.repricing.history import CurrentPrices, RepriceRun
from ..sql.session_owner import claim, owner
from ..sql.sessions import SessionRow, sessions
from ..timestamps import to_us
from .database import Database, Durability, Statements
from .insert import SqlValue
from .repricing import repricing
from .repricing.repricing import OnProgress
from .trace_file import TraceFile
from .upkeep.condition import StoreCondition, condition

if TYPE_CHECKING:
    from ..sql.calls.statistics import ErrorRow, StatisticsRow
    from .free_sql import SqlResult
    from .upkeep.pruning import PruneReport


class TraceStore:
    """A trace file. Use it on one event loop; every method raises StoreError if the file can't be used.

    A moment is microseconds since the epoch, UTC, or an aware datetime; for a naive one ValueError is raised.

    path: of the file, made when it is opened (mode 0600, its folder 0700). durability: ``normal`` loses nothing
    committed when the process is killed, ``full`` nothing when the power fails. readonly: as `open_readonly`.
    clock: of what the file says of itself, such as when a repricing began. Raises ValueError for another
    durability.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        durability: Durability = "normal",
        clock: Clock = SYSTEM_CLOCK,
        readonly: bool = False,
    ) -> None:
        self._database = Database(Path(path).expanduser(), durability=durability, readonly=readonly)
        self._clock = clock
        self._file = TraceFile(self._database, clock)
        self._repricing = anyio.Lock()  # a repricing has temporary tables, and a connection has one set of them

    @classmethod
    def open_readonly(cls, path: Path | str) -> Self:
        """A store that only reads a file that exists; another process may be writing to it. Not yet open."""
        return cls(path, readonly=True)

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return self._database.is_open

    @property
    def readonly(self) -> bool:
        """True if it was made by `open_readonly`."""
        return self._database.readonly

    async def open(self) -> None:
        """Open the file, making or migrating it as needed. Does nothing if it is open.

        Raises StoreError, and leaves the file as it is, if it is another application's, of a newer version, a
        symbolic link, or no database; StoreUnavailable if it can't be used now. Then each `write` tries again,
        until the store is closed.
        """
        await self._file.open()

    async def close(self) -> None:
        """Finish what is under way, mark the runs that lived here as ended, and close the file.

        Closing twice is harmless.
        """
        await self._file.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- Runs

    def hold_run(self, run_id: str) -> None:
        """Say that a run lives, until the store is closed or the process dies. Raises StoreError.

        Whoever writes events of calls that are still running says it first: a run that nobody holds counts as lost
        when the next writer starts. Touches one small file beside the database. After StoreUnavailable, the next
        `write` says it again.
        """
        self._file.hold_run(run_id)

    async def close_lost_runs(self, prices: PriceTable | None = None) -> list[str]:
        """End the calls and the runs of processes that died; the names of those runs. Starting writers do it.

        prices: what those calls may have used is priced by; without a table it is unpriced.
        """
        return await self._file.close_lost_runs(prices)

    # -- Writing

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        """Store events, and what they say about calls and sessions, in one transaction.

        Committed when it returns. An event that is stored already (same run, same seq) changes nothing. A caller
        that is cancelled waits for the transaction to end, and it may have been committed. Nothing is written when
        it raises: StoreError if the file can't be written, another exception if one of the events can't.
        """
        await self._file.write(envelopes)

    # -- Reading

    async def committed_seq(self, run_id: str) -> int:
        """The highest sequence number of a run that is committed; 0 if there is none."""
        rows = await self._database.read("SELECT committed_seq FROM runs WHERE run_id = ?", (run_id,))
        return int(rows[0][0]) if rows else 0

    async def calls(
        self, where: CallFilter | None = None, limit: int | None = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        """Attempts of calls, the newest first; `limit` None is all of them.

        under: the price version whose costs are wanted as `CallRow.cost`; None: the current one.
        """
        sql, values = calls_query(where, under, limit)
        return [call_row(row) for row in await self._database.read(sql, values)]

    async def calls_after(
        self, call_id: int, where: CallFilter | None = None, limit: int = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        """At most `limit` attempts of calls in the order in which they were first stored, after `call_id`.

        For reading all of them in pages: begin with 0, go on with the last row's `call_id`, end with no rows.
        under: as in `calls`.
        """
        sql, values = calls_after_query(where, under, call_id, limit)
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
        """Stored events in the order in which they were committed; `limit` None is all of them.

        An event of an unknown topic comes as an `UnknownEvent`. topic: one topic, or a family such as ``llm.*``.
        since, until: moments, from inclusive to exclusive. after_id: only events behind that number in the file.
        """
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
        """Like `events()`, of the same arguments, each event with its number in the file: at most `limit`, and
        pass the last number as `after_id` to read on.
        """
        sql, values = events_query(
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

    async def last_event_id(self) -> int:
        """The number of the last event in the file; 0 if there is none."""
        rows = await self._database.read("SELECT coalesce(max(id), 0) FROM events", [])
        return int(rows[0][0])

    async def sessions(self, limit: int | None = 1000) -> list[SessionRow]:
        """Sessions with what they used and cost, the latest event first; `limit` None is all of them."""
        return await sessions(self._database, limit)

    async def job(self, provider: str, job_id: str) -> StoredJob:
        """What is known of a job at a provider, such as a video's; all None if nothing is."""
        return await job(self._database, provider, job_id)

    async def costs(
        self,
        where: CallFilter | None = None,
        by: Sequence[str] = ("model",),
        *,
        under: str | None = None,
    ) -> list[CostRow]:
        """What calls used and cost, summed by the given dimensions, the dearest first; `by=()` gives one total.

        by: day (UTC), provider, model, session_id, turn_id, status, served_model, error_class, stop_reason,
        operation, or ``tag:KEY``. under: the price version whose costs are wanted; None: the current one. Raises
        ValueError for another dimension.
        """
        return await costs(self._database, where or CallFilter(), by, under)

    async def statistics(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",)
    ) -> list[StatisticsRow]:
        """Latency, first token, speed, cache hits and outcomes by the given dimensions, as in `costs`. Raises
        ValueError for another dimension.
        """
        from ..sql.calls.statistics import statistics

        return await statistics(self._database, where or CallFilter(), by)

    async def errors(self, where: CallFilter | None = None) -> list[ErrorRow]:
        """Failed attempts by class and model, the most frequent first."""
        from ..sql.calls.statistics import errors

        return await errors(self._database, where or CallFilter())

    async def sql(
        self, statement: str, parameters: Sequence[SqlValue] = (), *, limit: int = 1000, seconds: float = 10.0
    ) -> SqlResult:
        """What one SQL statement finds; it can only read, for at most `seconds`, at most `limit` rows.

        It runs on a connection of its own, so nobody waits for it. `tracestore.sqlite.schema.migrations` describes
        the tables. Raises StoreError for anything else than reading, and when out of time; ValueError for a
        negative limit or no time at all.
        """
        from .free_sql import select

        return await select(self.path, statement, parameters, limit=limit, seconds=seconds)

    # -- Content

    async def saved_session(self, session_id: str) -> SavedSession | None:
        """A session as it is stored, and what of it isn't; None if nothing is."""
        return await self._database.look(lambda statements: load_session(statements, session_id))

    async def claim_session(self, session_id: str, run_id: str, seq: int, history: int) -> bool:
        """Let a run be the one that goes on with a stored session; what others still say of it is kept apart.

        seq: of the run's latest event. history: how many messages it took over. False if that isn't all of them.
        """
        now = self._clock.now_us()

        def work(statements: Statements) -> bool:
            run = self._file.numbers.note(statements, RunSpan(run_id, now, now, 0))
            return claim(statements, session_id, run, seq, history)

        return await self._database.write(work)

    async def session_owner(self, session_id: str, run_id: str) -> tuple[str | None, int]:
        """The run that goes on with a stored session, None if there is none; and what of `run_id` is committed."""
        return await owner(self._database, session_id, run_id)

    async def messages(self, session_id: str) -> list[Message]:
        """The messages that are stored of a session, in order; `saved_session` says which are missing."""
        saved = await self.saved_session(session_id)
        return [] if saved is None else list(saved.messages)

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session, and what was captured of it and of no other; False if there is nothing of it.

        Its calls stay, and so does what they cost: they have never had content. Captured bytes are overwritten in
        the file; those in its log go with the next checkpoint. Raises StoreError.
        """
        from .upkeep.expiry import delete_session

        return await delete_session(self._database, session_id, self._clock.now_us() + 1)

    async def forget_content(self, before: int | datetime) -> int:
        """Delete all content that was last said before a moment, and return how many bodies went.

        Events and costs stay; sessions that began earlier can't be resumed any more. The bytes are overwritten in
        the file; those in its log go with the next checkpoint. before: a moment.
        """
        from .upkeep.expiry import forget_content

        before_us = to_us(before)
        return await self._database.write(lambda statements: forget_content(statements, before_us))

    # -- Health

    async def check(self, *, seconds: float = 30.0) -> list[str]:
        """What SQLite finds wrong with the file, in its own words; empty if nothing.

        Reads the whole file, with nobody else on this connection meanwhile: for a file in use, ask a store of
        its own, opened with `open_readonly`. Raises TimeoutError when `seconds` were not enough.
        """
        return await self._database.quick_check(seconds)

    async def condition(self) -> StoreCondition:
        """Its runs, living and lost, what dead writers left to be adopted, its size and what of that is free."""
        return await condition(self._database)

    async def journal_mode(self) -> str:
        """``wal``, unless the file is where there can be none, such as on a network share."""
        return await self._database.journal_mode()

    # -- Upkeep

    async def prune(
        self,
        *,
        before: int | datetime | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
        vacuum: bool = False,
        progress: Callable[[PruneReport], object] | None = None,
    ) -> PruneReport:
        """Delete what is old, in short transactions between which others write; see `sqlite.upkeep.pruning`.

        Interrupted, it has done a part; again, the rest. before: calls that ended, and events, before that moment.
        max_bytes: then the oldest of the rest, until no more than so many bytes are in use. dry_run: only count;
        of `max_bytes` that is an estimate. vacuum: rewrite the file afterwards, which makes writers wait.
        progress: told what has gone so far, after every step.
        """
        from .upkeep.pruning import Pruning

        moment = None if before is None else to_us(before)
        pruning = Pruning(self._database, progress)
        try:
            return await pruning.run(moment, max_bytes, dry=dry_run, vacuum=vacuum)
        finally:
            if not dry_run:
                self._file.numbers.forget()

    async def backup(self, path: Path | str, *, progress: Callable[[int, int], object] | None = None) -> None:
        """Copy the file as it is now to a path where nothing is yet; others go on writing meanwhile.

        progress: told the pages copied and the pages in all, now and then. The copy is a trace file of mode 0600;
        calls that run now have no end in it, and get one when a writer first starts on it. Raises StoreError, and
        leaves nothing at `path` then, nor when it is cancelled.
        """
        from .upkeep.backup import backup

        await backup(self.path, path, progress)

    # -- Prices

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
        """Work out what stored calls cost under another price table, and make that the current cost.

        It covers every call that had begun by its end; those that end later get their cost with their end. Events
        and costs at call time stay as they are; `undo_reprice()` goes back. One that is interrupted has changed
        nothing yet; `resume_reprice()` goes on with it.

        table: a table, or the version of one that this file knows. where: only these calls. dry_run: only report.
        as_model: price every call as if this ``provider:name`` had served it; nothing is kept then.
        by_session: compare sessions too. progress: told between chunks how many calls are done, and of how many.
        Raises StoreError, also for a version that this file doesn't know.
        """
        if isinstance(table, str):
            table = await stored_prices.stored_table(self._database, table)
        run = repricing.Repricing(
            *(self._database, self._clock, table, where or CallFilter(), as_model),
            by_session=by_session,
            progress=progress,
        )
        async with self._repricing:
            return await run.run(dry=dry_run or as_model is not None)

    async def resume_reprice(
        self, run_id: int | None = None, *, progress: OnProgress | None = None
    ) -> RepriceReport:
        """Go on with a repricing that was interrupted; the report is that of the whole.

        run_id: its number, see `reprice_runs`; None takes the latest. progress: as in `reprice`. Raises StoreError
        if there is none.
        """
        async with self._repricing:
            begun = await reprice_runs.interrupted(self._database, run_id)
            table = await stored_prices.stored_table(self._database, begun.version)
            run = repricing.Repricing(
                *(self._database, self._clock, table, begun.where, None),
                by_session=begun.by_session,
                progress=progress,
            )
            return await run.resume(begun)

    async def undo_reprice(self) -> RepriceRun:
        """Take the latest repricing back: what was current before it is current again. Raises StoreError if there
        is none.
        """
        return await reprice_runs.undo(self._database, self._clock.now_us())

    async def use_prices(self, version: str | None) -> None:
        """Choose which costs are the current ones: those of an earlier repricing, or (None) those at call time.

        Raises StoreError for a version that this file doesn't know.
        """
        await stored_prices.use_prices(self._database, version)

    async def current_prices(self) -> CurrentPrices:
        """Which costs are the current ones, and the latest repricing; changed when anyone changed them."""
        return await reprice_runs.current_prices(self._database)

    async def current_version(self) -> str | None:
        """The price version of the current costs; None if they are those at call time."""
        return await self._database.look(stored_prices.current_version)

    async def price_table(self, version: str) -> PriceTable:
        """One of the price tables that this file knows. Raises StoreError, naming them, for another version."""
        return await stored_prices.stored_table(self._database, version)

    async def price_tables(self) -> list[PriceTable]:
        """The price tables that this file knows, in the order in which they came."""
        return await stored_prices.stored_tables(self._database)

    async def reprice_runs(self) -> list[RepriceRun]:
        """The history of repricings, the newest first."""
        return await reprice_runs.history(self._database)

"""The interface of a store. Engine, writer and exports use a store only through it.

`TraceStore`, the trace in a SQLite file, is one implementation. A time is given in microseconds since the epoch,
UTC, or as an aware datetime. A naive datetime raises ValueError. Every method raises StoreError if the store can't
be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from callboard.bus.events import Envelope
from callboard.bus.values.messages import Message

from .call_columns import CallFilter, CallRow, SearchFilter
from .prices.table import PriceTable
from .reports import (
    CurrentPrices,
    Delivered,
    OnProgress,
    PruneReport,
    RepriceReport,
    RepriceRun,
    SqlResult,
    StoreCondition,
)
from .rows import (
    CostRow,
    CountedCall,
    ErrorRow,
    FoundMessage,
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


class Store(Protocol):
    """A trace: the events of calls and sessions, and the tables that are derived from them.

    Events are the source of truth and append-only. All other rows are derived from events in the same transaction,
    so they always agree with the events. Events are stored without content: an appended message has only its
    position, role and id. Captured content is stored in its own tables. A store belongs to one event loop.
    """

    @property
    def path(self) -> Path:
        """The path of the store's files on this machine.

        While the store fails, a writer spills events to files next to this path.
        """
        ...

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        ...

    async def open(self) -> None:
        """Open the store, and create or upgrade it as needed. Does nothing if the store is open.

        Raises:
            StoreError: The store isn't Callboard's or has a newer version. The store is not changed.
            StoreUnavailable: The store can't be used now. Each `write` tries again until the store is closed.
        """

    async def close(self) -> None:
        """Finish the work in progress, mark this process's runs as ended, and close the store.

        Closing twice is harmless.
        """

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- Writing: runs and their events ---

    def hold_run(self, run_id: str) -> None:
        """Mark a run as alive until the store is closed or the process dies.

        A process calls this before it writes events of calls in progress. When a writer starts, it treats every
        run without a mark as lost. After StoreUnavailable, the next `write` tries again.
        """

    async def close_lost_runs(
        self, prices: PriceTable | None = None, delivered: Delivered | None = None
    ) -> list[str]:
        """End the calls and the runs of processes that died. A writer does this when it starts.

        Args:
            prices: The prices for the tokens that those calls may have used. Without a table they are unpriced.
            delivered: Returns the output that readers in other processes have of a call.

        Returns:
            The ids of the runs that were ended.
        """
        ...

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        """Store events, and the changes to calls and sessions that they report, in one transaction.

        When the method returns, the events are committed. An event that is already stored (same run, same seq) has
        no effect. A cancelled caller waits for the end of the transaction, which may have committed.

        Raises:
            StoreError: The store can't be written. Nothing is written.
            Exception: An event can't be stored. Nothing is written.
        """

    async def committed_seq(self, run_id: str) -> int:
        """The highest sequence number of a run that is committed; 0 if there is none."""
        ...

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """A context that excludes all other users of this trace under the same name, in any process.

        Entering waits without a time limit. The end of a process releases the context.

        Args:
            name: Any text.
        """
        ...

    # --- Importing calls that other programs recorded ---

    async def imported_calls(self, request_ids: Sequence[str]) -> dict[str, Imported]:
        """The given calls that were imported before, including pruned calls."""
        ...

    async def imported_files(self, source: str) -> dict[str, ImportedFile]:
        """The files that a source has read, by their paths."""
        ...

    async def deleted_sessions(self, session_ids: Sequence[str]) -> set[str]:
        """Return those of the given sessions that were deleted with `delete_session`."""
        ...

    async def write_import(
        self, envelopes: Sequence[Envelope], revisions: Sequence[Revision], files: Sequence[ImportedFile]
    ) -> bool:
        """Store imported calls, and the reading positions in their files, in one transaction.

        Args:
            envelopes: The events of the calls, as for `write`.
            revisions: The new revision of each call, with the revision that `imported_calls` returned.
            files: The files with their reading positions.

        Returns:
            False if nothing was written. The reason is one of three: another importer has written one of these
                calls, one of the calls was pruned, or one of the events belongs to a deleted session.
        """
        ...

    # --- Calls, events and jobs, one by one ---

    async def calls(
        self, where: CallFilter | None = None, limit: int | None = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        """Attempts of calls, the newest first.

        Args:
            where: A filter for the calls.
            limit: The largest number of attempts. None means all of them.
            under: The price version for `CallRow.cost`. None means the current one.
        """
        ...

    async def calls_after(
        self, call_id: int, where: CallFilter | None = None, limit: int = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        """Attempts of calls in the order in which they were first stored, for reading all of them in pages.

        Args:
            call_id: The number after which to continue: 0 at first, and then the last row's `call_id`. At the end
                no rows are returned.
            where: A filter for the calls.
            limit: The largest number of attempts.
            under: The price version, as in `calls`.
        """
        ...

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
        """Stored events in the order in which they were committed.

        An event of an unknown topic is an `UnknownEvent`.

        Args:
            run_id: The run of the events.
            session_id: The session of the events.
            request_id: The request of the events.
            topic: One topic, or a family such as ``llm.*``.
            since: The earliest time of an event.
            until: The moment before which the events happened.
            after_id: The number in the trace after which to start.
            limit: The largest number of events. None means all of them.
        """
        ...

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
        """Like `events()`, but return each event with its number in the trace.

        At most `limit` events are returned. Pass the last number as `after_id` to continue.
        """
        ...

    async def run_events(self, run_id: str, after_seq: int = 0, limit: int = 1000) -> list[Envelope]:
        """The stored events of one run with a `seq` above a number, in the order of `seq`.

        Args:
            run_id: The run.
            after_seq: The `seq` after which to start.
            limit: The largest number of events.
        """
        ...

    async def run_positions(self, since: int | datetime) -> dict[str, int]:
        """The highest committed `seq` of each run, by the ids of the runs.

        Args:
            since: A time. Runs that ended before it may be left out.
        """
        ...

    async def last_event_id(self) -> int:
        """The number of the last event in the trace; 0 if there is none."""
        ...

    async def job(self, provider: str, job_id: str) -> StoredJob:
        """The stored data of a job at a provider, such as a video."""
        ...

    async def open_replies(self, session_id: str | None = None, *, owned: bool = False) -> list[OpenReply]:
        """Background replies of processes that have ended, in the order of their calls.

        Args:
            session_id: The id of a session; None means all calls, with or without a session.
            owned: Whether the session belongs to the caller. If so, the store doesn't check whether the process
                has ended, because in a cluster this may be detected late.
        """
        ...

    async def batch(self, batch_id: str) -> StoredBatch | None:
        """The stored data of a batch; None if nothing is stored."""
        ...

    async def batches(self, limit: int = 100) -> list[StoredBatch]:
        """At most `limit` batches, the latest first."""
        ...

    async def counted_calls(self, request_ids: Sequence[str]) -> dict[str, CountedCall]:
        """The given calls that have ended, by their ids."""
        ...

    async def sql(
        self,
        statement: str,
        parameters: Sequence[str | int | float | bytes | None] = (),
        *,
        limit: int = 1000,
        seconds: float = 10.0,
    ) -> SqlResult:
        """The rows of one read-only SQL statement, which does not block writers.

        Args:
            statement: The statement, in the SQL of the database.
            parameters: The values of its parameters.
            limit: The largest number of rows.
            seconds: The time limit.

        Raises:
            StoreError: The statement doesn't only read, or takes too long.
            ValueError: The limit is negative, or the time limit is not positive.
        """
        ...

    # --- Sums and percentiles over calls ---

    async def costs(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",), *, under: str | None = None
    ) -> list[CostRow]:
        """The tokens and costs of calls, summed by dimensions, the most expensive group first.

        The dimensions are day (UTC), provider, model, session_id, turn_id, status, served_model, error_class,
        stop_reason, operation, key, root, origin, or ``tag:KEY``.

        Args:
            where: A filter for the calls.
            by: The dimensions. ``()`` gives one total.
            under: The price version for the costs. None means the current one.

        Raises:
            ValueError: The dimension is unknown.
        """
        ...

    async def statistics(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",)
    ) -> list[StatisticsRow]:
        """Latency, first token, speed, cache hits and outcomes by dimensions, as in `costs`.

        Raises:
            ValueError: The dimension is unknown.
        """
        ...

    async def errors(self, where: CallFilter | None = None) -> list[ErrorRow]:
        """Failed attempts, grouped by class and model. The most frequent group is first."""
        ...

    async def spending(self, queries: Sequence[SpendingQuery], run_id: str) -> Spending:
        """The sums for budgets, all read from one state of the trace.

        Args:
            queries: The calls that count, and how they are grouped.
            run_id: The caller's run. Its calls in progress are left out, because the caller counts them itself.

        Raises:
            ValueError: The dimension is unknown.
        """
        ...

    # --- Sessions and their captured content ---

    async def sessions(
        self, limit: int | None = 1000, *, tags: Mapping[str, str] | None = None
    ) -> list[SessionRow]:
        """Sessions with their sums, the latest event first.

        Args:
            limit: The largest number of sessions; None means all.
            tags: Tags that every session must have.
        """
        ...

    async def saved_session(self, session_id: str) -> SavedSession | None:
        """A session with its content, and a list of the parts that are missing; None if nothing is stored."""
        ...

    async def was_answered(self, session_id: str) -> bool:
        """Whether a model has, or may have, answered in a session. False for a deleted session."""
        ...

    async def messages(self, session_id: str) -> list[Message]:
        """The stored messages of a session, in order. `saved_session` lists missing messages."""
        ...

    async def search(self, where: SearchFilter) -> list[FoundMessage]:
        """Messages with captured content, the latest first. The first search for words builds an index of all
        captured words. Every later search for words adds new content to the index, so it writes. A search without
        words only reads. Deleted content is removed from the index.

        Raises:
            StoreError: The text has no word, or the database has no text search.
        """
        ...

    async def claim_session(self, session_id: str, run_id: str, seq: int, history: int) -> bool:
        """Make a run the owner of a stored session.

        From then on, messages of other runs are stored in a separate session.

        Args:
            session_id: The session.
            run_id: The run.
            seq: The number of the run's latest event.
            history: The number of messages that the run took over.

        Returns:
            False if the stored history has another length.
        """
        ...

    async def session_owner(self, session_id: str, run_id: str) -> tuple[str | None, int]:
        """The run that owns a stored session, and the last committed number of `run_id`.

        The run is None if the session has no owner.
        """
        ...

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session, and the content that no other session shares.

        The figures of its calls are kept: models, times, tokens and costs. The session's name and tags, the texts
        of errors, the names of tools, and events of your own are erased, because they may quote content. Sums by a
        tag no longer include these calls. Deleted bytes are overwritten.

        The deletion reaches a shared store with the next shipping. A shipper does not bring back a session that
        was deleted in the shared store, until a new session of that name starts.

        Returns:
            False if nothing of the session is stored.
        """
        ...

    async def forget_content(self, before: int | datetime) -> int:
        """Delete all content that was last used before a given time.

        Events, costs and tags are kept. The names of sessions, the texts of errors and the names of tools are
        erased. Older sessions can no longer be resumed. The bytes are overwritten. As with a deleted session, the
        deletion also reaches a shared store.

        Returns:
            The number of deleted bodies.
        """
        ...

    # --- Price tables, and the costs of stored calls under them ---

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
        """Calculate the costs of stored calls with another price table, and make them the current costs.

        A repricing covers every call that had started by its end. A call that ends later gets its cost with its
        end. Events and costs at call time are never changed. `undo_reprice()` makes the previous costs current
        again. An interrupted repricing has no effect on current costs, and `resume_reprice()` continues it.

        Args:
            table: A table, or the version of a table in this store.
            where: The calls to reprice.
            dry_run: Whether to only report the effect.
            as_model: A ``provider:name`` to price every call as. Then nothing is stored.
            by_session: Whether to compare sessions, too.
            progress: Called between chunks with the number of calls that are done, and of all calls.

        Raises:
            StoreError: The store has no such version, or can't be used.
        """
        ...

    async def resume_reprice(
        self, run_id: int | None = None, *, progress: OnProgress | None = None
    ) -> RepriceReport:
        """Continue an interrupted repricing. The report covers the whole repricing.

        Args:
            run_id: The number of the repricing, see `reprice_runs`. None means the latest.
            progress: As in `reprice`.

        Raises:
            StoreError: The repricing does not exist.
        """
        ...

    async def undo_reprice(self) -> RepriceRun:
        """Undo the latest repricing. The previous costs become current again.

        Raises:
            StoreError: There is no repricing to undo.
        """
        ...

    async def use_prices(self, version: str | None) -> None:
        """Choose the current costs: the costs of an earlier repricing. With None, the costs at call time.

        Raises:
            StoreError: The store has no such version.
        """

    async def current_prices(self) -> CurrentPrices:
        """The repricings that set the current costs, and the latest repricing. Any process may change them."""
        ...

    async def current_version(self) -> str | None:
        """The price version of the current costs; None if these are the costs at call time."""
        ...

    async def price_table(self, version: str) -> PriceTable:
        """One of the store's price tables.

        Raises:
            StoreError: The store has no such version. The error lists the versions that it has.
        """
        ...

    async def price_tables(self) -> list[PriceTable]:
        """The store's price tables, in the order in which they were added."""
        ...

    async def reprice_runs(self) -> list[RepriceRun]:
        """The history of repricings, the newest first."""
        ...

    # --- Health, retention and copies ---

    async def check(self, *, seconds: float = 30.0) -> list[str]:
        """The faults that the database finds in itself; empty if there are none. The check may read the whole
        database, and blocks this connection until it ends. For a store in use, open a second store that only
        reads.

        Raises:
            TimeoutError: The check took longer than `seconds`.
        """
        ...

    async def condition(self) -> StoreCondition:
        """The running and lost runs, the files that dead writers left for adoption, and the size of the trace."""
        ...

    async def journal_mode(self) -> str:
        """``wal``, unless the file system doesn't support such a log, for example a network share."""
        ...

    async def prune(
        self,
        *,
        before: int | datetime | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
        vacuum: bool = False,
        progress: Callable[[PruneReport], object] | None = None,
    ) -> PruneReport:
        """Delete old rows in short transactions. Other processes can write between them.

        An interrupted pruning has deleted a part; the next one deletes the rest.

        Args:
            before: Calls that ended, and events that happened, before this moment are deleted.
            max_bytes: The largest size in use. The oldest remaining rows are deleted until the trace is no larger.
            dry_run: Whether to only count rows. For `max_bytes` the count is an estimate.
            vacuum: Whether to rewrite the file afterwards, which makes writers wait.
            progress: Called after every step with the counts so far.
        """
        ...

    async def backup(self, path: Path | str, *, progress: Callable[[int, int], object] | None = None) -> None:
        """Copy the current trace to a new path. Writers can continue during the copy.

        The copy is a trace file of mode 0600. Calls in progress have no end in the copy. They are closed when a
        writer first opens it.

        Args:
            path: The path of the copy. If the copy fails or is cancelled, no file is left.
            progress: Called regularly with the number of copied pages and of all pages.

        Raises:
            StoreError: The path exists, or the copy failed.
        """

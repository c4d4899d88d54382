"""The interface of a store, by subject. The engine, the writer and the exports know a store by nothing else.

`TraceStore`, the trace in a SQLite file, is one implementation. A moment is microseconds since the epoch, UTC, or
an aware datetime; a naive datetime is a ValueError. Every method raises StoreError if the store can't be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from callboard.bus.events.envelope import Envelope
from callboard.bus.values.messages import Message

from .calls import CallFilter, CallRow, SearchFilter
from .prices.table import PriceTable
from .reports import CurrentPrices, OnProgress, PruneReport, RepriceReport, RepriceRun, SqlResult, StoreCondition
from .rows import (
    CostRow,
    CountedCall,
    ErrorRow,
    FoundMessage,
    OpenReply,
    SavedSession,
    SessionRow,
    Spending,
    SpendingQuery,
    StatisticsRow,
    StoredBatch,
    StoredJob,
)
from .sql.batches import Delivered


class Opening(Protocol):
    """The life of a store in this process."""

    @property
    def path(self) -> Path:
        """The store's place on this machine. A writer keeps beside it whatever the store can't take."""
        ...

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        ...

    async def open(self) -> None:
        """Open the store, and make it or bring it up to date as needed. Does nothing if it is open.

        Raises:
            StoreError: The store isn't ours or is of a newer version. It is left as it is.
            StoreUnavailable: The store can't be used now. Each `write` tries again until the store is closed.
        """
        ...

    async def close(self) -> None:
        """Finish the work that is under way, mark the runs that lived here as ended, and close the store.

        Closing twice is harmless.
        """
        ...

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class Writing(Protocol):
    """The way in: runs and their events."""

    def hold_run(self, run_id: str) -> None:
        """Say that a run lives, until the store is closed or the process dies.

        A process says it before it writes events of calls that are still running. A run that nobody holds counts
        as lost when the next writer starts. After StoreUnavailable, the next `write` says it again.
        """
        ...

    async def close_lost_runs(
        self, prices: PriceTable | None = None, delivered: Delivered | None = None
    ) -> list[str]:
        """End the calls and the runs of processes that died. Starting writers do it.

        Args:
            prices: The prices for the tokens that those calls may have used. Without a table they are unpriced.
            delivered: Returns the output that readers in other processes have of a call.

        Returns:
            The names of those runs.
        """
        ...

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        """Store events, and whatever they say about calls and sessions, in one transaction.

        The events are committed when it returns. An event that is stored already (same run, same seq) changes
        nothing. A caller that is cancelled waits for the transaction to end, which may have committed. Nothing is
        written when it raises: StoreError if the store can't be written, another exception if an event can't.
        """
        ...

    async def committed_seq(self, run_id: str) -> int:
        """The highest sequence number of a run that is committed; 0 if there is none."""
        ...

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """A block in which nobody else who uses this trace is, in this process or another, under the same name.

        It waits for its turn, however long that takes. Whoever dies has left the block.

        Args:
            name: Any text.
        """
        ...


class Queries(Protocol):
    """Calls, events and jobs, one by one."""

    async def calls(
        self, where: CallFilter | None = None, limit: int | None = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        """Attempts of calls, the newest first.

        Args:
            where: The calls that are wanted.
            limit: The number of attempts at most. None is all of them.
            under: The price version whose costs are wanted as `CallRow.cost`. None is the current one.
        """
        ...

    async def calls_after(
        self, call_id: int, where: CallFilter | None = None, limit: int = 1000, *, under: str | None = None
    ) -> list[CallRow]:
        """Attempts of calls in the order in which they were first stored, for reading all of them in pages.

        Args:
            call_id: The number behind which to go on: 0 at first, and then the last row's `call_id`. The end is
                where no rows come.
            where: The calls that are wanted.
            limit: The number of attempts at most.
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

        An event of an unknown topic comes as an `UnknownEvent`.

        Args:
            run_id: The run of the events.
            session_id: The session of the events.
            request_id: The request of the events.
            topic: One topic, or a family such as ``llm.*``.
            since: The first moment.
            until: The moment before which the events lie.
            after_id: The number in the trace behind which the events lie.
            limit: The number of events at most. None is all of them.
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
        """The same as `events()`, each event with its number in the trace.

        At most `limit` events come. Pass the last number as `after_id` to read on.
        """
        ...

    async def run_events(self, run_id: str, after_seq: int = 0, limit: int = 1000) -> list[Envelope]:
        """The stored events of one run whose `seq` is above a number, in the order of `seq`.

        Args:
            run_id: The run.
            after_seq: The number.
            limit: The number of events at most.
        """
        ...

    async def run_positions(self, since: int | datetime) -> dict[str, int]:
        """How far each run is stored: the highest `seq` that is committed, by the names of the runs.

        Args:
            since: A moment. Runs that had ended before it may be left out.
        """
        ...

    async def last_event_id(self) -> int:
        """The number of the last event in the trace; 0 if there is none."""
        ...

    async def job(self, provider: str, job_id: str) -> StoredJob:
        """A job at a provider, such as a video's, as far as it is known."""
        ...

    async def open_replies(self, session_id: str | None = None, *, owned: bool = False) -> list[OpenReply]:
        """The replies that are made in the background and whose process has ended, in the order of their calls.

        Args:
            session_id: A session; None is all, and calls without one.
            owned: Whether the session belongs to whoever asks. Then it is not asked whether the process has ended,
                which in a cluster may be known late.
        """
        ...

    async def batch(self, batch_id: str) -> StoredBatch | None:
        """A batch as far as it is known; None if nothing is."""
        ...

    async def batches(self, limit: int = 100) -> list[StoredBatch]:
        """The latest batches, the latest first, up to a limit."""
        ...

    async def counted_calls(self, request_ids: Sequence[str]) -> dict[str, CountedCall]:
        """Those of some calls that have ended in the trace, by their ids."""
        ...

    async def sql(
        self,
        statement: str,
        parameters: Sequence[str | int | float | bytes | None] = (),
        *,
        limit: int = 1000,
        seconds: float = 10.0,
    ) -> SqlResult:
        """The answer to one SQL statement, which can only read. Nobody waits for it.

        Args:
            statement: The statement, in the SQL of the database.
            parameters: The values of its parameters.
            limit: The number of rows at most.
            seconds: The time that it may take.

        Raises:
            StoreError: The statement does anything but read, or is out of time.
            ValueError: The limit is negative, or there is no time at all.
        """
        ...


class Statistics(Protocol):
    """Sums and percentiles over calls, by dimensions: day (UTC), provider, model, session_id, turn_id, status,
    served_model, error_class, stop_reason, operation, or ``tag:KEY``.
    """

    async def costs(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",), *, under: str | None = None
    ) -> list[CostRow]:
        """The tokens and costs of calls, summed by dimensions, the dearest group first.

        Args:
            where: The calls that are summed.
            by: The dimensions. ``()`` gives one total.
            under: The price version whose costs are wanted. None is the current one.

        Raises:
            ValueError: There is no such dimension.
        """
        ...

    async def statistics(
        self, where: CallFilter | None = None, by: Sequence[str] = ("model",)
    ) -> list[StatisticsRow]:
        """Latency, first token, speed, cache hits and outcomes by dimensions.

        Raises:
            ValueError: There is no such dimension.
        """
        ...

    async def errors(self, where: CallFilter | None = None) -> list[ErrorRow]:
        """Failed attempts by class and model, the most frequent first."""
        ...

    async def spending(self, queries: Sequence[SpendingQuery], run_id: str) -> Spending:
        """The sums that budgets count, all of one moment.

        Args:
            queries: Which calls count, and how they are grouped.
            run_id: The run of whoever asks. Its calls under way are left out, because it knows them itself.

        Raises:
            ValueError: There is no such dimension.
        """
        ...


class Sessions(Protocol):
    """Sessions, and the content that was captured of them."""

    async def sessions(
        self, limit: int | None = 1000, *, tags: Mapping[str, str] | None = None
    ) -> list[SessionRow]:
        """Sessions with their sums, the latest event first.

        Args:
            limit: The largest number of them; None is all.
            tags: Tags that they have, all of them.
        """
        ...

    async def saved_session(self, session_id: str) -> SavedSession | None:
        """A session with its content, and a list of the parts that are missing; None if nothing is stored."""
        ...

    async def was_answered(self, session_id: str) -> bool:
        """Whether a model has answered in a session that wasn't deleted, or may have, whatever is stored of it."""
        ...

    async def messages(self, session_id: str) -> list[Message]:
        """The messages that are stored of a session, in order. `saved_session` says which are missing."""
        ...

    async def search(self, where: SearchFilter) -> list[FoundMessage]:
        """Messages whose content was captured, the latest first.

        A search for words makes an index of all captured words at its first time, and takes in what came since at
        every other. So it writes; without words it only reads. What is deleted goes from the index, too.

        Raises:
            StoreError: There is no word to look for, or the database has no search for texts.
        """
        ...

    async def claim_session(self, session_id: str, run_id: str, seq: int, history: int) -> bool:
        """Let a run be the one that goes on with a stored session.

        Whatever another run still says of the session is kept apart.

        Args:
            session_id: The session.
            run_id: The run.
            seq: The number of the run's latest event.
            history: The number of messages that the run took over.

        Returns:
            False if the stored history is of another length.
        """
        ...

    async def session_owner(self, session_id: str, run_id: str) -> tuple[str | None, int]:
        """The run that goes on with a stored session, None if there is none; and the last number of `run_id` that
        is committed.
        """
        ...

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session, and the content that was captured of it and of no other.

        The figures of its calls stay: models, times, tokens and costs. Everything that may quote somebody is
        erased: the session's name, tags, the texts of errors, the names of tools, and events of the host's own. So
        sums by a tag do not include these calls any more. Deleted bytes are overwritten. What
        was shipped from a file goes from the shared store with the next shipping; what is deleted in a shared
        store is not brought back by a shipper, until a session of that name begins anew.

        Returns:
            False if nothing of the session is stored.
        """
        ...

    async def forget_content(self, before: int | datetime) -> int:
        """Delete all content that was last said before a moment.

        Events and costs stay, and so do tags. The names of sessions, the texts of errors and the names of tools
        are erased. Sessions that began earlier can't be resumed any more. The bytes are overwritten. It
        reaches a shared store, and stays there, as the deletion of a session does.

        Returns:
            The number of bodies that went.
        """
        ...


class Repricing(Protocol):
    """Price tables, and the costs that stored calls have under them."""

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
        """Work out the costs of stored calls under another price table, and make them the current costs.

        It covers every call that had begun by its end. A call that ends later gets its cost with its end. Events
        and costs at call time stay as they are; `undo_reprice()` goes back. A repricing that is interrupted has
        changed nothing yet; `resume_reprice()` goes on with it.

        Args:
            table: A table, or the version of a table that this store knows.
            where: The calls to reprice.
            dry_run: Whether only to report.
            as_model: A ``provider:name`` to price every call as. Nothing is kept then.
            by_session: Whether to compare sessions, too.
            progress: Told between chunks how many calls are done, and of how many.

        Raises:
            StoreError: The store doesn't know the version, or can't be used.
        """
        ...

    async def resume_reprice(
        self, run_id: int | None = None, *, progress: OnProgress | None = None
    ) -> RepriceReport:
        """Go on with a repricing that was interrupted; the report is that of the whole.

        Args:
            run_id: The number of the repricing, see `reprice_runs`. None takes the latest.
            progress: As in `reprice`.

        Raises:
            StoreError: There is no such repricing.
        """
        ...

    async def undo_reprice(self) -> RepriceRun:
        """Take the latest repricing back: the costs that were current before it are current again.

        Raises:
            StoreError: There is no repricing to undo.
        """
        ...

    async def use_prices(self, version: str | None) -> None:
        """Choose the current costs: those of an earlier repricing, or (None) those at call time.

        Raises:
            StoreError: The store doesn't know the version.
        """
        ...

    async def current_prices(self) -> CurrentPrices:
        """The repricings whose costs are current, and the latest one. It changes when anybody changes them."""
        ...

    async def current_version(self) -> str | None:
        """The price version of the current costs; None if these are the costs at call time."""
        ...

    async def price_table(self, version: str) -> PriceTable:
        """One of the price tables that this store knows.

        Raises:
            StoreError: The store knows no such version. The error names the known ones.
        """
        ...

    async def price_tables(self) -> list[PriceTable]:
        """The price tables that this store knows, in the order in which they came."""
        ...

    async def reprice_runs(self) -> list[RepriceRun]:
        """The history of repricings, the newest first."""
        ...


class Upkeep(Protocol):
    """The health of a store, retention, and copies."""

    async def check(self, *, seconds: float = 30.0) -> list[str]:
        """The faults that the database finds in itself, in its own words; empty if there are none.

        It may read everything, and nobody else is served on this connection meanwhile: for a store in use, ask a
        store of your own that only reads.

        Raises:
            TimeoutError: The time in `seconds` was not enough.
        """
        ...

    async def condition(self) -> StoreCondition:
        """The runs, living and lost, the files that dead writers left to be adopted, and the size of the trace."""
        ...

    async def journal_mode(self) -> str:
        """``wal``, unless the trace is where there can be no such log, for instance on a network share."""
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
        """Delete old rows, in short transactions between which others write.

        An interrupted pruning has done a part; the next one does the rest.

        Args:
            before: The moment before which calls ended, and events happened, that are deleted.
            max_bytes: The size in use, down to which the oldest rows of the rest are deleted.
            dry_run: Whether only to count. For `max_bytes` the count is an estimate.
            vacuum: Whether to rewrite the file afterwards, which makes writers wait.
            progress: Told after every step what has gone so far.
        """
        ...

    async def backup(self, path: Path | str, *, progress: Callable[[int, int], object] | None = None) -> None:
        """Copy the trace as it is now to a path where nothing is yet. Others go on writing meanwhile.

        The copy is a trace file of mode 0600. Calls that run now have no end in it, and get one when a writer
        first starts on it.

        Args:
            path: The path of the copy. Nothing is left there if the copy fails or is cancelled.
            progress: Told the pages copied and the pages in all, now and then.

        Raises:
            StoreError: Something is at the path, or the copy failed.
        """
        ...


class Store(Opening, Writing, Queries, Statistics, Sessions, Repricing, Upkeep, Protocol):
    """A trace: events go in; calls, sessions and costs come out.

    Events are the truth and append-only. Everything that is queried is derived from them in the same transaction,
    so the two never disagree. No event is stored with content: of a message that was appended the position, the
    role and the id remain. Captured content is kept beside the events. A store is used on one event loop.
    """

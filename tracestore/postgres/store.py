"""The trace in PostgreSQL, an implementation of `tracestore.store.Store`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio

from callboard.bus.clock import SYSTEM_CLOCK, US_PER_DAY, Clock
from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope

from ..call_columns import SearchFilter
from ..gateway import GatewayTables
from ..home import home_folder
from ..nodes import NodeRow, SliceRow
from ..prices.table import PriceTable
from ..reports import Check, Delivered, PruneReport, SqlResult, StoreCondition
from ..rows import FoundMessage
from ..sql.batches import Batch, batch_of
from ..sql.connection import Patience, SqlValue, Unstorable, shielded
from ..sql.connection import Statements as AnyStatements
from ..sql.events import RunNumbers, RunSpan, claim
from ..sql.store import SqlStore
from ..sql.sums import SumKeeper
from ..writing.overflow import (
    BATCH_EVENTS,
    NOTHING_WAITS,
    LateEvents,
    adopt_leftovers,
    left_over,
    waiting_events,
    waiting_files,
    warn_of,
)
from .connection import name_of, unstorable
from .database import EVER_US, SCHEMA, Database, select, separate_connection
from .ledger import SLICES, slice_rows
from .nodes import NODES, named_lock, node_rows, take_from_cluster
from .runs import LEASE_SECONDS, Runs
from .schema import ensure_months, open_migrated
from .statements import Statements, clean_envelope, clean_text

if TYPE_CHECKING:
    from ..sql.pruning import Pruning

_WRITING = Patience(work=20.0, cancelled=5.0)
"""Seconds for a transaction. If a transaction takes longer, the server hangs or another writer blocks the
transaction. The events then wait in memory or in a file.
"""


class PostgresStore(SqlStore):
    """A trace in a PostgreSQL database, for any number of hosts. `Store` describes the methods.

    Args:
        dsn: The database, as a URL (``postgresql://…``) or as libpq's ``key=value`` words.
        schema: The schema of the tables, made when the store is opened.
        path: The path on this machine for files of events that the database can't store yet. None uses a path in
            the folder ``postgres`` of Callboard's home folder.
        clock: The clock for the store's own times, such as the start of a repricing.
        readonly: Whether the database is only read.
        lease_seconds: Seconds after the last renewal for which a run is treated as alive.
        take_in: Whether the store stores the events that dead processes of this machine left at `path`.

    Raises:
        StoreError: This is not a DSN, or the driver is not installed.
        ValueError: The schema's name or the length of leases is impossible.
    """

    _sweep_before_us = EVER_US

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = SCHEMA,
        path: Path | str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        readonly: bool = False,
        lease_seconds: float = LEASE_SECONDS,
        take_in: bool = True,
    ) -> None:
        self._database: Database = Database(dsn, schema=schema, readonly=readonly)
        self._clock = clock
        self._path = _default_path(self._database) if path is None else Path(path).expanduser()
        self._living = Runs(self._database, clock, self._path, lease_seconds)
        self._sums = SumKeeper(self._database)
        self._opening = anyio.Lock()
        self._repricing = anyio.Lock()
        self._is_opened = False  # True between `open` and `close`, even if the database could not be opened
        self._days: set[int] = set()  # days whose partitions exist
        self._takes_in = take_in
        self._waiting = NOTHING_WAITS
        self._failed_files: frozenset[Path] = frozenset()  # Files at `path` that could not be stored.
        self._looking = anyio.Lock()

    @classmethod
    def open_readonly(cls, dsn: str, *, schema: str = SCHEMA, take_in: bool = True) -> Self:
        """Make a store that only reads an existing trace, without opening it. Other processes may write to the
        trace.

        Args:
            dsn: The database, as for the class.
            schema: The schema of the tables.
            take_in: Whether the store also stores the events that dead processes of this machine left, if this
                user may write.
        """
        return cls(dsn, schema=schema, readonly=True, take_in=take_in)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def dsn(self) -> str:
        """The address of the database, including the password if it has one. Never show it."""
        return self._database.dsn

    @property
    def schema(self) -> str:
        """The schema of the tables."""
        return self._database.schema

    @property
    def name(self) -> str:
        """The name of the database in messages: its host, port and database."""
        return self._database.name

    @property
    def is_open(self) -> bool:
        return self._database.is_open

    @property
    def readonly(self) -> bool:
        """True if the store was made by `open_readonly`."""
        return self._database.readonly

    @property
    def gateway(self) -> GatewayTables:
        """The rows of gateways in this database. Their transactions don't wait for writers of the trace."""
        return GatewayTables(self._database.look, self._database.brief)

    @property
    def waiting(self) -> LateEvents:
        """The events of this machine's dead processes that the database could not store."""
        return self._waiting

    async def __aenter__(self) -> Self:
        """Open the store, and store the events that dead processes of this machine left at `path`.

        `open` leaves those events to the writer that an engine starts.
        """
        await self.open()
        if self._takes_in and not self.readonly:
            await self._take_in()
        return self

    async def _take_in(self, *, needed: bool = False) -> None:
        """Store the events that dead processes left.

        A reader that may not write shows the trace without these events, because they can't be merged into a
        database in memory.
        """
        async with self._looking:
            found = await waiting_events(self._path) if waiting_files(self._path) else NOTHING_WAITS
            files = frozenset(found.files)
            if files and (needed or files != self._failed_files):
                await self._adopted()
                found = await waiting_events(self._path)
                if found and not needed:
                    warn_of(found, f"{self.name} is read-only for this user now")
            self._waiting, self._failed_files = found, frozenset(found.files)
        if found and needed:
            raise left_over(found)

    async def _adopted(self) -> None:
        try:
            if not self.readonly:
                await adopt_leftovers(self._path, self.write, own_path=None, batch_events=BATCH_EVENTS)
                return
            writer = PostgresStore(self.dsn, schema=self.schema, path=self._path, clock=self._clock)
            await writer.open()
            try:
                await writer._adopted()
            finally:
                await writer.close()
        except StoreError:
            return  # the files stay in place for the caller

    async def open(self) -> None:
        self._is_opened = True
        async with self._opening:
            if self._database.is_open:
                return
            if not self.readonly:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await open_migrated(self._database, self._clock.now_us())
        if self.readonly and self._takes_in:
            await self._take_in()
            self._database.before_reading = self._take_in

    async def close(self) -> None:
        self._is_opened = False
        self._database.before_reading = None
        try:
            await self._living.end_all()
        finally:
            self._days.clear()
            await self._database.close()

    def hold_run(self, run_id: str) -> None:
        self._living.hold(run_id)

    async def close_lost_runs(
        self, prices: PriceTable | None = None, delivered: Delivered | None = None
    ) -> list[str]:
        await self._open_at_last()
        return await self._living.close_lost(prices, delivered)

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        if envelopes:
            await self._write_with(envelopes)

    async def _write_with(
        self, envelopes: Sequence[Envelope], first: Callable[[AnyStatements], None] = lambda statements: None
    ) -> None:
        await self._open_at_last()
        await shielded(self._store(envelopes, first))
        await self._sums.stored(len(envelopes))

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        return named_lock(self._database, name)

    async def _open_at_last(self) -> None:
        """Open the database now, if it could not be reached when the store was opened."""
        if self._is_opened and not self._database.is_open:
            await self.open()

    async def _store(self, envelopes: Sequence[Envelope], first: Callable[[AnyStatements], None]) -> None:
        try:
            await self._write(await batch_of(envelopes), envelopes, first)
        except Unstorable:
            # The cause is an invalid character, a number beyond 64 bits, or a partition that was dropped by hand.
            self._days.clear()
            cleaned = [clean_envelope(envelope) for envelope in envelopes]
            await self._write(await batch_of(cleaned, clean_text), cleaned, first)

    async def _write(
        self, batch: Batch, envelopes: Sequence[Envelope], first: Callable[[AnyStatements], None]
    ) -> None:
        days = {envelope.ts_us // US_PER_DAY for envelope in envelopes}

        def work(statements: Statements) -> Callable[[], None]:
            with unstorable():
                if not days <= self._days:
                    ensure_months(statements, [day * US_PER_DAY for day in days])
                committed = self._living.lease(statements)
                first(statements)
                batch.write(statements, partial(RunNumbers().note, statements))
                return committed

        committed = await self._database.write(work, patience=_WRITING)
        committed()
        self._days |= days

    async def sql(
        self, statement: str, parameters: Sequence[SqlValue] = (), *, limit: int = 1000, seconds: float = 10.0
    ) -> SqlResult:
        if self.readonly and self._takes_in:
            await self._take_in()
        return await select(self._database, statement, parameters, limit=limit, seconds=seconds)

    async def claim_session(self, session_id: str, run_id: str, seq: int, history: int) -> bool:
        now = self._clock.now_us()

        def work(statements: Statements) -> tuple[bool, Callable[[], None]]:
            committed = self._living.lease(statements)
            if not take_from_cluster(statements, session_id, run_id):
                return False, committed
            run = RunNumbers().note(statements, RunSpan(run_id, now, now, 0))
            return claim(statements, session_id, run, seq, history), committed

        claimed, committed = await self._database.write(work)
        committed()
        return claimed

    async def nodes(self) -> list[NodeRow]:
        """The nodes of clusters that share this trace, the living ones first.

        Raises:
            StoreError: The database can't be read.
        """
        return node_rows(await self._database.read(NODES))

    async def slices(self) -> list[SliceRow]:
        """The grants of nodes from shared budgets and rate limits, as stored.

        Raises:
            StoreError: The database can't be read.
        """
        return slice_rows(await self._database.read(SLICES))

    async def search(self, where: SearchFilter) -> list[FoundMessage]:
        from ..search import search
        from .statements import PostgresIndex

        return await search(self._database, PostgresIndex(), where)

    async def check(self, *, seconds: float = 30.0) -> list[str]:
        from .upkeep import check

        return await check(self._database, seconds)

    async def condition(self) -> StoreCondition:
        from .upkeep import condition

        return await condition(self._database, self._path, self._living.lease_seconds)

    async def checks(self) -> list[Check]:
        """The checks of the server, of the connection, and of the trace. The checks create nothing."""
        from .upkeep import checks_of, server_facts

        try:
            facts = await server_facts(self.dsn, self.schema)
        except StoreError as error:
            fix = "Check the network, the address, and the password in it."
            return [Check("store", False, str(error), fix)]
        if not facts.schema_version:
            return checks_of(facts, None, ())
        try:
            async with self.open_readonly(self.dsn, schema=self.schema, take_in=False) as reader:
                return checks_of(facts, await reader.condition(), await reader.nodes())
        except StoreError as error:
            unread = Check("store", False, str(error), "Upgrade the older of the two.")
            return [unread, *checks_of(facts, None, ())[1:]]

    async def journal_mode(self) -> str:
        return "wal"  # PostgreSQL always has a write-ahead log

    def _pruning(self, progress: Callable[[PruneReport], object] | None) -> Pruning:
        from .upkeep import ServerPruning

        return ServerPruning(self._database, progress)

    def _pruned(self) -> None:
        self._days.clear()

    async def backup(self, path: Path | str, *, progress: Callable[[int, int], object] | None = None) -> None:
        from .upkeep import refuse_backup

        raise refuse_backup(self._database, path)

    async def _erased(self) -> None:
        """Do nothing, as `Statements.erasing`."""

    def _for_repricing(self) -> AbstractAsyncContextManager[Database]:
        database = self._database
        if database.pooled:
            raise StoreError(
                f"{database.name}: a repricing needs temporary tables across transactions, and a pooler "
                f"drops them. Use the address of the server itself, without pooler=transaction"
            )
        return separate_connection(database.dsn, database.schema, readonly=database.readonly)


def _default_path(database: Database) -> Path:
    where = f"{name_of(database.dsn)}#{database.schema}"
    return home_folder() / "postgres" / f"trace-{hashlib.sha256(where.encode()).hexdigest()[:12]}"

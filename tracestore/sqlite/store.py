"""The trace in a SQLite file on this machine's disk, an implementation of `tracestore.store.Store`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.events import Envelope

from ..call_columns import SearchFilter
from ..gateway import GatewayTables
from ..prices.table import PriceTable
from ..reports import Delivered, PruneReport, SqlResult, StoreCondition
from ..rows import FoundMessage
from ..sql.batches import Batch
from ..sql.connection import SqlValue, Statements
from ..sql.events import RunSpan, claim
from ..sql.store import SqlStore
from ..writing.overflow import NOTHING_WAITS, LateEvents, left_over, waiting_events, waiting_files, warn_of
from .database import Database, Durability
from .files import named_lock
from .trace_file import TraceFile, WholeTrace, select, take_in

if TYPE_CHECKING:
    from ..sql.pruning import Pruning


class TraceStore(SqlStore):
    """A trace file: one file, one connection, one writing process at a time. `Store` describes the methods.

    Args:
        path: The path of the file. Opening the store creates a missing file (mode 0600, its folder 0700). A
            symbolic link is refused.
        durability: With ``normal``, commits survive when the process is killed. With ``full``, they survive a loss
            of power.
        clock: The clock for the file's own times, such as the start of a repricing.
        readonly: Whether the file is only read, as by `open_readonly`.
        take_in: Whether the store shows the events that dead processes left next to the file. A reader that may
            write stores them; otherwise it merges them into a temporary copy.

    Raises:
        ValueError: The durability is unknown.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        durability: Durability = "normal",
        clock: Clock = SYSTEM_CLOCK,
        readonly: bool = False,
        take_in: bool = True,
    ) -> None:
        place = Path(path).expanduser()
        self._database: Database = (
            WholeTrace(place)
            if readonly and take_in
            else Database(place, durability=durability, readonly=readonly)
        )
        self._takes_in = take_in and not readonly
        self._waiting = NOTHING_WAITS
        self._clock = clock
        self._file = TraceFile(self._database, clock)
        # A connection also has only one set of temporary tables.
        self._repricing = anyio.Lock()

    @classmethod
    def open_readonly(cls, path: Path | str, *, take_in: bool = True) -> Self:
        """Make a store that only reads an existing file, without opening it. Another process may write to the
        file.

        Args:
            path: The file.
            take_in: Whether the store shows the events that dead processes left next to the file. If this process
                may write the file, it stores the events there.
        """
        return cls(path, readonly=True, take_in=take_in)

    @property
    def path(self) -> Path:
        return self._database.path

    @property
    def is_open(self) -> bool:
        return self._database.is_open

    @property
    def readonly(self) -> bool:
        """True if the store was made by `open_readonly`."""
        return self._database.readonly

    @property
    def gateway(self) -> GatewayTables:
        """The rows of gateways in this file."""
        return GatewayTables(self._database.look, self._database.write)

    @property
    def waiting(self) -> LateEvents:
        """The events of dead processes that this store does not show, because it could not read or merge them."""
        return self._database.waiting if isinstance(self._database, WholeTrace) else self._waiting

    async def open(self) -> None:
        await self._file.open()

    async def __aenter__(self) -> Self:
        """Open the store, and store the events that dead processes left next to the file.

        `open` leaves those events to the writer that an engine starts.
        """
        await self.open()
        if self._takes_in:
            await self._take_in()
        return self

    async def _take_in(self, *, needed: bool = False) -> None:
        found = await waiting_events(self.path) if waiting_files(self.path) else NOTHING_WAITS
        if found:
            await take_in(self.path)
            found = await waiting_events(self.path)
        self._waiting = found
        if found and needed:
            raise left_over(found)
        if found:
            warn_of(found, "the trace or the files next to it can't be written")

    async def close(self) -> None:
        await self._file.close()

    def hold_run(self, run_id: str) -> None:
        self._file.hold_run(run_id)

    async def close_lost_runs(
        self, prices: PriceTable | None = None, delivered: Delivered | None = None
    ) -> list[str]:
        return await self._file.close_lost_runs(prices, delivered)

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        await self._file.write(envelopes)

    async def _write_with(self, envelopes: Sequence[Envelope], first: Callable[[Statements], None]) -> None:
        await self._file.write(envelopes, first)

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        return named_lock(self.path, name)

    def tell(self, on_batch: Callable[[Batch], object]) -> None:
        """Set the function to call in the event loop with each committed batch."""
        self._file.on_batch = on_batch

    async def sql(
        self, statement: str, parameters: Sequence[SqlValue] = (), *, limit: int = 1000, seconds: float = 10.0
    ) -> SqlResult:
        return await select(self.path, statement, parameters, limit=limit, seconds=seconds)

    async def claim_session(self, session_id: str, run_id: str, seq: int, history: int) -> bool:
        now = self._clock.now_us()

        def work(statements: Statements) -> bool:
            run = self._file.numbers.note(statements, RunSpan(run_id, now, now, 0))
            return claim(statements, session_id, run, seq, history)

        return await self._database.write(work)

    async def search(self, where: SearchFilter) -> list[FoundMessage]:
        from ..search import search
        from .statements import SqliteIndex

        return await search(self._database, SqliteIndex(), where)

    async def _erased(self) -> None:
        await self._database.clear_gaps()

    async def check(self, *, seconds: float = 30.0) -> list[str]:
        return await self._database.quick_check(seconds)

    async def condition(self) -> StoreCondition:
        from .upkeep import condition

        return await condition(self._database)

    async def journal_mode(self) -> str:
        return await self._database.journal_mode()

    def _pruning(self, progress: Callable[[PruneReport], object] | None) -> Pruning:
        from .upkeep import FilePruning

        return FilePruning(self._database, progress)

    def _pruned(self) -> None:
        self._file.numbers.forget()

    async def backup(self, path: Path | str, *, progress: Callable[[int, int], object] | None = None) -> None:
        from .upkeep import backup

        await self._take_in()
        await backup(self.path, path, progress)

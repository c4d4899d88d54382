"""The runs of a trace in PostgreSQL: their leases, and the end of lost runs.

A run in progress has a lease, a row in `run_leases`. The lease is inserted with the run's first events and renewed
by the run's process. All times are of the database's clock. A run without an end and with an expired lease is
lost. The next writer ends the run as in `tracestore.sql.batches`. Writers look for lost runs at their start, and
then every minute.

After a start of the server, each process has time to renew its lease before the lease expires. If a process is
disconnected for longer, its runs are ended. Its next events reopen them, and the calls get their real end later. A
run from a shipper (`shipped_from`) is ended in its own file, never here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from callboard.bus.clock import Clock
from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from ..prices.table import PriceTable
from ..reports import Delivered
from ..sql.batches import END_IN_ORDER, close_run, delivered_of
from ..sql.connection import Statements
from ..writing.overflow import is_unwritten
from .database import Database
from .statements import array_of

_log = Log("tracestore.runs")

LEASE_SECONDS = 60.0
"""Seconds after the last renewal for which a run is treated as alive."""

_RENEWALS = 4
"""The number of renewals while a lease lasts."""

_UNTIL = "clock_timestamp() + make_interval(secs => ?)"
_LEASE = f"""
    INSERT INTO run_leases (run_id, lease_until, host) VALUES (?, {_UNTIL}, ?)
    ON CONFLICT (run_id) DO UPDATE SET lease_until = excluded.lease_until, host = excluded.host
"""
_RENEW = f"UPDATE run_leases SET lease_until = {_UNTIL} WHERE run_id = ANY(CAST(? AS text[])) RETURNING run_id"

IS_LIVING = """
    EXISTS (SELECT 1 FROM run_leases AS l
             WHERE l.run_id = r.run_id
               AND greatest(l.lease_until, pg_postmaster_start_time() + make_interval(secs => ?))
                   > clock_timestamp())
"""
"""The condition that a run ``r`` has a lease. Its parameter is the length of leases in seconds."""

LOST = f"SELECT r.run_id FROM runs AS r WHERE r.ended_us IS NULL AND r.shipped_from IS NULL AND NOT {IS_LIVING}"
"""The runs of dead processes."""


class Runs:
    """The runs in progress of one store, and the end of lost runs."""

    def __init__(self, database: Database, clock: Clock, path: Path, lease_seconds: float = LEASE_SECONDS) -> None:
        if lease_seconds <= 0:
            raise ValueError("lease_seconds must be positive")
        self.lease_seconds = lease_seconds
        self._database = database
        self._clock = clock
        self._path = path
        self._runs: set[str] = set()
        self._leased: set[str] = set()  # The runs with leases in the database.
        self._prices: PriceTable | None = None
        self._delivered: Delivered | None = None
        self._looks = False  # whether this store looks for lost runs regularly
        self._keeper: asyncio.Task[None] | None = None

    def hold(self, run_id: str) -> None:
        """Keep a lease on a run until `end_all`. Call this before any event of the run is written."""
        self._runs.add(run_id)
        self._keep()

    def lease(self, statements: Statements) -> Callable[[], None]:
        """Create missing leases of runs, in the transaction that writes the runs' events."""
        new = self._runs - self._leased
        for run_id in sorted(new):
            statements.run(_LEASE, (run_id, self.lease_seconds, socket.gethostname()))
        return lambda: self._leased.update(new)

    async def close_lost(self, prices: PriceTable | None = None, delivered: Delivered | None = None) -> list[str]:
        """End the runs of dead processes now, and regularly from now on."""
        self._prices, self._delivered, self._looks = prices, delivered, True
        self._keep()
        closed = []
        for (run_id,) in await self._database.read(f"{LOST} ORDER BY r.id", (self.lease_seconds,)):
            if run_id in self._runs or is_unwritten(self._path, run_id):
                continue
            calls = await self._close(run_id)
            if calls is not None:
                closed.append(run_id)
                _log.info("run_lost", run_id=run_id, calls=calls, store=self._database.name)
        return closed

    async def _close(self, run_id: str) -> int | None:
        """End a lost run, unless it has a lease again. Return the number of calls that were ended."""
        now, prices = self._clock.now_us(), self._prices
        counts = await delivered_of(self._database, run_id, self._delivered)

        def work(statements: Statements) -> int | None:
            if not statements.run(f"{LOST} AND r.run_id = ?", (self.lease_seconds, run_id)):
                return None
            statements.run("DELETE FROM run_leases WHERE run_id = ?", (run_id,))
            return close_run(statements, run_id, now, prices, counts)

        return await self._database.write(work)

    async def end_all(self) -> None:
        """Mark this store's runs as ended, and delete their leases.

        Runs with open calls, or with events in their spill file, are left to the next writer.
        """
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        runs, self._runs, self._leased, self._looks = self._runs, set(), set(), False
        now = self._clock.now_us()

        def work(statements: Statements) -> None:
            for run_id in sorted(runs):
                if not is_unwritten(self._path, run_id):
                    statements.run(END_IN_ORDER, (now, run_id))
                statements.run("DELETE FROM run_leases WHERE run_id = ?", (run_id,))

        try:
            if runs and self._database.is_open:
                await self._database.write(work)
        except StoreError as error:
            _log.warning("run_not_ended", error=str(error))

    def _keep(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.get_running_loop().create_task(self._renew_and_look(), name="callboard leases")

    async def _renew_and_look(self) -> None:
        renewals = 0
        while True:
            await asyncio.sleep(self.lease_seconds / _RENEWALS)
            renewals += 1
            if not self._database.is_open:
                continue
            try:
                await self._renew()
                if self._looks and renewals % _RENEWALS == 0:
                    await self.close_lost(self._prices, self._delivered)
            except StoreError as error:
                _log.warning("leases_not_renewed", error=str(error))

    async def _renew(self) -> None:
        leased = sorted(self._leased)
        if not leased:
            return
        found = {
            run_id
            for (run_id,) in await self._database.read(_RENEW, (self.lease_seconds, array_of(leased, "text")))
        }
        for run_id in self._leased.difference(found):
            _log.warning("lease_was_lost", run_id=run_id, note="its calls were ended by another process")
        self._leased &= found

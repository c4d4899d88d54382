"""The runs of a trace file: which of them live, and how a dead one is ended.

A run is one start of a bus whose events go into the file. While it lives, its process holds a lock on
``<file>.run-<run_id>``. The lock ends with the process, however the process dies. The next start of a writer looks
for runs that are not marked as ended, and whose lock nobody holds. Such a run is lost. Each of its calls without
an end gets an end, and the run is marked, in one transaction. Readers never do this, nor do commands that write
something else.

The usage of such a call is estimated from the input that its start reports, and priced for the time of the call.
Nobody knows the output that the provider had written by then. If the start reports no input, nothing is known of
the usage.

The end of such a call is an `llm.call_failed` of class `PROCESS_LOST`. It belongs to the lost run, at the run's
next number, last moment and last monotonic time. So (run, seq) stays unique, since the only process that gave
numbers to this run is dead. A reader or a replay of one run finds start and end in it, in order. A replay at the
original pace doesn't wait through the hours until the run was ended. `runs.ended_us` holds the time at which it
was ended.

The spill file or the journal of the dead process may hold further events, ends of calls among them. So a run stays
open until those events are written.
"""

from __future__ import annotations

from bus.clock import Clock
from bus.errors import StoreError
from bus.events.catalogue import LlmCallFailed
from bus.events.envelope import Envelope
from bus.log import Log
from bus.values.usage import Cost, CostSource, TokenUsage, UsageSource

from ..prices.table import PriceTable
from ..sql.calls.columns import tags_of
from ..sql.connection import Row
from ..sql.projection import Batch
from ..sql.run_numbers import RunSpan
from ..writing.spill import is_unwritten
from .database import Database
from .files import RunLock, free_run_lock, run_locks
from .statements import Statements

PROCESS_LOST = "process_lost"
"""The error class of a call whose process died. No adapter raises it, so it is not a value of `ErrorClass`."""

_MESSAGE = "the process died before this call ended; what it used and cost is at best an estimate"

_log = Log("tracestore.runs")


class Runs:
    """The runs that live through one store, and the end of lost runs."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._held: dict[str, RunLock] = {}
        self._wanted: set[str] = set()  # to be held, as soon as that can be said

    def hold(self, run_id: str) -> None:
        """This run lives until `end_all`. To be said before anything of it is written. Raises StoreError."""
        self._wanted.add(run_id)
        if run_id not in self._held:
            self._held[run_id] = RunLock(self._database.path, run_id)

    def hold_again(self) -> None:
        """Say it of the runs of which it couldn't be said, or whose file is gone. Raises StoreError."""
        for run_id in self._wanted:
            if run_id in self._held and not self._held[run_id].is_in_place:
                self._held.pop(run_id).close()
            self.hold(run_id)

    async def close_lost(self, prices: PriceTable | None = None) -> list[str]:
        """End the runs whose processes are gone.

        Args:
            prices: The prices of the usage of their calls; None leaves the costs unknown.

        Returns:
            The ids of these runs.

        Raises:
            StoreError: A run can't be ended. The runs before it are ended.
        """
        path = self._database.path
        closed = []
        for run_id in await open_runs(self._database):
            with free_run_lock(path, run_id) as lock:
                if lock is None or is_unwritten(path, run_id):
                    continue
                calls = await self._close(run_id, prices)
                lock.remove()
            closed.append(run_id)
            _log.info("run_lost", run_id=run_id, calls=calls, file=str(path))
        await self._remove_strays()
        return closed

    async def _close(self, run_id: str, prices: PriceTable | None) -> int:
        now = self._clock.now_us()
        return await self._database.write(lambda statements: _close_run(statements, run_id, now, prices))

    async def _remove_strays(self) -> None:
        """Lock files of processes that died before they had written anything, or after all was done."""
        path = self._database.path
        left = set(await open_runs(self._database))
        for run_id in run_locks(path):
            if run_id not in left:
                with free_run_lock(path, run_id) as lock:
                    if lock is not None:
                        lock.remove()

    async def end_all(self) -> None:
        """Mark the runs that were held as ended, and let go of them.

        One with calls that have no end, or with something in its spill file, is left to the next start.
        """
        held, self._held = self._held, {}
        self._wanted.clear()
        path, now = self._database.path, self._clock.now_us()
        ended = [run_id for run_id in held if not is_unwritten(path, run_id)]

        def work(statements: Statements) -> None:
            for run_id in ended:
                statements.run(_END_IN_ORDER, (now, run_id))

        try:
            if ended and self._database.is_open:
                await self._database.write(work)
        except StoreError as error:
            _log.warning("run_not_ended", error=str(error))
        finally:
            for lock in held.values():
                lock.remove()


_END_IN_ORDER = """
    UPDATE runs
       SET ended_us = ?, ending = 'closed'
     WHERE run_id = ? AND ended_us IS NULL
       AND NOT EXISTS (SELECT 1 FROM calls AS c WHERE c.run = runs.id AND c.status = 'started')
"""

_CALLS_WITHOUT_END = """
    SELECT session_id, turn_id, request_id, attempt, message_id, caused_by, tags, ts_us, provider, model,
           estimated_input_tokens, priced_as
      FROM calls
     WHERE run = ? AND status = 'started'
     ORDER BY id
"""


async def open_runs(database: Database) -> list[str]:
    """The runs that are not marked as ended, living and lost ones, the earliest first."""
    return [str(run_id) for (run_id,) in await database.read("SELECT run_id FROM runs WHERE ended_us IS NULL")]


def _close_run(statements: Statements, run_id: str, now_us: int, prices: PriceTable | None) -> int:
    """End one lost run, unless another process has done it meanwhile.

    Returns:
        The number of calls that got an end.
    """
    found = statements.run(
        """
        SELECT r.id, r.last_us, r.committed_seq,
               (SELECT e.mono_ns FROM events AS e WHERE e.run = r.id ORDER BY e.seq DESC LIMIT 1)
          FROM runs AS r
         WHERE r.run_id = ? AND r.ended_us IS NULL
        """,
        (run_id,),
    )
    if not found:
        return 0
    ((number, last_us, seq, mono_ns),) = found
    ends = [
        _end_of(row, run_id, seq + place, last_us, mono_ns or 0, prices)
        for place, row in enumerate(statements.run(_CALLS_WITHOUT_END, (number,)), 1)
    ]

    def note(span: RunSpan) -> int:
        statements.run("UPDATE runs SET committed_seq = ? WHERE id = ?", (span.seq, number))
        return int(number)

    if ends:
        Batch.of(ends).write(statements, note)
    statements.run("UPDATE runs SET ended_us = ?, ending = ? WHERE id = ?", (now_us, PROCESS_LOST, number))
    return len(ends)


def _end_of(row: Row, run_id: str, seq: int, last_us: int, mono_ns: int, prices: PriceTable | None) -> Envelope:
    session_id, turn_id, request_id, attempt, message_id, caused_by, tags, *about = row
    began_us, provider, model, sent, priced_as = about
    usage = None if sent is None else TokenUsage(sent, source=UsageSource.ESTIMATED)
    cost = Cost(None, CostSource.UNPRICED, None, PROCESS_LOST)
    if usage is not None and prices is not None:
        cost = prices.price(model, usage, began_us, priced_as=priced_as)
    event = LlmCallFailed(
        provider=provider,
        model=model,
        error_class=PROCESS_LOST,
        error_type="ProcessLost",
        message=_MESSAGE,
        will_retry=False,
        retry_count=attempt - 1,
        usage=usage,
        cost=cost,
        latency_ms=max(0, last_us - began_us) // 1000,  # as long as it was seen alive
    )
    return Envelope(
        seq=seq,
        run_id=run_id,
        ts_us=last_us,
        mono_ns=mono_ns,
        data=event,
        session_id=session_id,
        turn_id=turn_id,
        request_id=request_id,
        attempt=attempt,
        message_id=message_id,
        caused_by=caused_by,
        tags=tags_of(tags) or None,
    )

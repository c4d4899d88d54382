"""Retention: old rows are deleted in small steps, so that others can write in between.

A call is deleted as a whole once all its attempts ended before the cutoff: its attempts, tags, events and costs.
Other events are deleted by their own time. Then sessions and ended runs without remaining rows are deleted, and
also captured content without a session. The sums over the remaining rows stay correct.

Some rows stay at any age: calls without an end, open runs, price tables, and the history of repricings. The last
call and the last event of the trace stay as well. So no number is reused, and readers miss no row.

Events and costs are append-only. Triggers refuse every DELETE, unless a row of the table `pruning` allows it for
that age. Such a row exists only inside the transaction of a step.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import anyio
import msgspec

from ..gateway import forget_kept_before
from ..reports import PruneReport
from .connection import Database, Row, SqlValue, Statements, placeholders
from .expiry import allowed, delete_sessions, delete_spared, delete_unneeded, needed_bodies

CALLS_AT_ONCE = 250
SESSIONS_AT_ONCE = 250
ROWS_AT_ONCE = 2000
_ROUNDS = 12
_LONGEST_PAUSE = 0.1

Progress = Callable[[PruneReport], object]

_DELETE_COSTS = "DELETE FROM call_cost WHERE run IN (SELECT id FROM reprice_run) AND call_id IN ({calls})"
_DELETE_EVENTS = "DELETE FROM events WHERE request_id IN (SELECT request_id FROM calls WHERE id IN ({calls}))"
_OLD_SESSIONS = """
    SELECT s.session_id FROM sessions AS s
     WHERE s.last_us < :before_us
       AND NOT EXISTS (SELECT 1 FROM calls AS c WHERE c.session_id = s.session_id)
       AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.session_id = s.session_id)
"""
OLD_RUNS = """
    SELECT r.id FROM runs AS r
     WHERE r.last_us < :before_us AND r.ended_us IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.run = r.id)
       AND r.id NOT IN (SELECT run FROM session_setups)
"""

# The requests of the last call and of the last event are kept, with all their rows.
_KEPT_REQUESTS = """
    SELECT request_id FROM calls WHERE id = (SELECT max(id) FROM calls)
     UNION
    SELECT request_id FROM events WHERE id = (SELECT max(id) FROM events) AND request_id IS NOT NULL
"""
_OLD_CALLS = f"""
    FROM calls AS c
   WHERE c.ts_us < :before_us
     AND c.request_id NOT IN ({_KEPT_REQUESTS})
     AND NOT EXISTS (
            SELECT 1 FROM calls AS k
             WHERE k.request_id = c.request_id
               AND (k.status = 'started' OR coalesce(k.finished_us, k.ts_us) >= :before_us)
         )
     AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.request_id = c.request_id AND e.ts_us >= :before_us)
"""
OLD_EVENTS = """
    FROM events AS e
   WHERE e.id > :low AND e.id <= :high AND e.ts_us < :before_us
     AND e.id < (SELECT max(id) FROM events)
     AND (e.request_id IS NULL OR NOT EXISTS (SELECT 1 FROM calls AS c WHERE c.request_id = e.request_id))
"""
# For a range of call ids: the number of calls, and of their events and costs. An event belongs to a request, and
# is counted with the request's first attempt.
_COUNT_OLD_CALLS = f"""
    WITH old AS (SELECT c.id, c.request_id {_OLD_CALLS} AND c.id > :low AND c.id <= :high)
    SELECT (SELECT count(*) FROM old),
           (SELECT count(*)
              FROM old AS o JOIN events AS e ON e.request_id = o.request_id
             WHERE o.id = (SELECT min(k.id) FROM calls AS k WHERE k.request_id = o.request_id)),
           (SELECT count(*)
              FROM call_cost
             WHERE run IN (SELECT id FROM reprice_run) AND call_id IN (SELECT id FROM old))
"""


class Pruning(ABC):
    _delete_tags: str
    """The statement that deletes the tags of calls. ``{calls}`` is a placeholder for a list of their ids."""
    _events_with_calls: bool
    """Whether events are deleted in the transaction of their calls. Otherwise they are deleted later."""

    _old_runs = OLD_RUNS
    """The part of a query that finds ended runs without remaining rows."""

    def __init__(self, database: Database, progress: Progress | None) -> None:
        self._database = database
        self._progress = progress
        self._report = PruneReport(dry_run=False, before_us=0)

    async def run(self, before_us: int | None, max_bytes: int | None, *, dry: bool, vacuum: bool) -> PruneReport:
        """Delete rows that ended before `before_us`, then the oldest rows until at most `max_bytes` are in use."""
        used, file_bytes = await self._sizes()
        self._report = PruneReport(
            dry_run=dry, before_us=before_us or 0, bytes_before=used, bytes_after=used, file_bytes=file_bytes
        )
        if dry:
            return await self._measure(before_us, max_bytes)
        if before_us is not None:
            await self._delete(before_us)
        if max_bytes is not None:
            await self._shrink_to(max_bytes)
        if vacuum:
            await self._vacuum()
        else:
            await self._give_back()
        used, file_bytes = await self._sizes()
        self._report = msgspec.structs.replace(self._report, bytes_after=used, file_bytes=file_bytes)
        return self._report

    # --- By age ---

    async def _measure(self, before_us: int | None, max_bytes: int | None) -> PruneReport:
        report = self._report
        if max_bytes is not None and report.bytes_before > max_bytes:
            guess = await self._cutoff(1 - max_bytes / report.bytes_before)
            before_us = max(before_us or 0, guess)
        if before_us is None:
            return report
        before_us = await self._allowed_until(before_us)
        attempts = events = costs = 0
        for span in _spans(before_us, *await self._numbers("calls")):
            ((calls, of_calls, priced),) = await self._found(_COUNT_OLD_CALLS, span)
            attempts, events, costs = attempts + calls, events + of_calls, costs + priced
        for span in _spans(before_us, *await self._numbers("events")):
            ((others,),) = await self._found(f"SELECT count(*) {OLD_EVENTS}", span)
            events += others
        return msgspec.structs.replace(report, before_us=before_us, attempts=attempts, events=events, costs=costs)

    async def _delete(self, before_us: int) -> int:
        """Delete rows. Returns the number of deleted events and attempts."""
        before_us = await self._allowed_until(before_us)
        self._report = msgspec.structs.replace(self._report, before_us=before_us)
        began = self._report.events + self._report.attempts
        while await self._step(partial(self._delete_calls, before_us=before_us)):
            pass
        await self._delete_events(before_us)
        while await self._step(partial(_delete_sessions, before_us=before_us)):
            pass
        await self._step(partial(self._delete_runs, before_us=before_us))
        await self._delete_bodies(before_us)
        await self._step(lambda statements: {"bodies": forget_kept_before(statements, before_us)})
        return self._report.events + self._report.attempts - began

    def _delete_calls(self, statements: Statements, before_us: int) -> dict[str, int]:
        found = statements.run(
            f"SELECT c.id {_OLD_CALLS} ORDER BY c.ts_us LIMIT {CALLS_AT_ONCE}", {"before_us": before_us}
        )
        if not found:
            return {}
        some = [number for (number,) in found]
        # All attempts of a request are deleted together, even beyond the limit.
        all_attempts = statements.run(
            f"""
            SELECT id FROM calls
             WHERE request_id IN (SELECT request_id FROM calls WHERE id IN ({placeholders(len(some))}))
            """,
            some,
        )
        ids = [number for (number,) in all_attempts]
        calls = placeholders(len(ids))
        with allowed(statements, before_us):
            statements.run(self._delete_tags.format(calls=calls), ids)
            costs = statements.change(_DELETE_COSTS.format(calls=calls), ids)
            events = statements.change(_DELETE_EVENTS.format(calls=calls), ids) if self._events_with_calls else 0
            attempts = statements.change(f"DELETE FROM calls WHERE id IN ({calls})", ids)
        return {"attempts": attempts, "events": events, "costs": costs}

    async def _delete_events(self, before_us: int) -> None:
        """Delete old events outside of any call."""
        for span in _spans(before_us, *await self._numbers("events")):
            # A query takes no lock, and most parts of a trace have no old rows.
            if await self._found(f"SELECT 1 {OLD_EVENTS} LIMIT 1", span):
                await self._step(partial(_delete_some_events, before_us=before_us, span=span))

    def _delete_runs(self, statements: Statements, before_us: int) -> dict[str, int]:
        gone = statements.change(f"DELETE FROM runs WHERE id IN ({self._old_runs})", {"before_us": before_us})
        return {"runs": gone}

    async def _delete_bodies(self, before_us: int) -> None:
        old = await self._database.read("SELECT 1 FROM content WHERE last_us < ? LIMIT 1", (before_us,))
        if not old:
            return
        needed = await self._database.look(lambda statements: needed_bodies(statements, before_us))
        last = 0

        def work(statements: Statements) -> dict[str, int]:
            nonlocal last
            gone, last = delete_unneeded(statements, before_us, needed, last)
            return {"bodies": gone}

        while await self._step(work) or last:
            pass
        if needed.spared:
            await self._step(lambda statements: {"bodies": delete_spared(statements, before_us, needed.spared)})

    async def _step(self, work: Callable[[Statements], dict[str, int]]) -> bool:
        """Run one transaction, then pause for the same time, so that others can write."""
        began = time.monotonic()
        gone = await self._database.write(work)
        if not any(gone.values()):
            return False
        counts = {name: getattr(self._report, name) + count for name, count in gone.items()}
        self._report = msgspec.structs.replace(self._report, **counts)
        if self._progress is not None:
            self._progress(self._report)
        await anyio.sleep(min(time.monotonic() - began, _LONGEST_PAUSE))
        return True

    async def _found(self, sql: str, values: dict[str, SqlValue]) -> list[Row]:
        return await self._database.look(lambda statements: statements.run(sql, values))

    async def _numbers(self, table: Literal["calls", "events"]) -> tuple[int, int]:
        """The range of a table's row numbers: above the first number and up to the second."""
        ((low, last),) = await self._database.read(
            f"SELECT coalesce((SELECT min(id) FROM {table}), 1) - 1, coalesce((SELECT max(id) FROM {table}), 0)"
        )
        return int(low), int(last)

    async def _shrink_to(self, max_bytes: int) -> None:
        for _ in range(_ROUNDS):
            used, _file = await self._sizes()
            if used <= max_bytes:
                return
            cutoff = await self._cutoff(1 - max_bytes / used)
            if not await self._delete(max(cutoff, self._report.before_us)):
                return

    async def _cutoff(self, share: float) -> int:
        """Find a cutoff time before which about `share` of the events happened, and at least one event."""
        low, last = await self._numbers("events")
        place = low + 1 + int((last - low) * share)
        rows = await self._database.read(
            "SELECT max(ts_us) + 1 FROM (SELECT ts_us FROM events WHERE id <= ? ORDER BY id DESC LIMIT 100) AS e",
            (place,),
        )
        return int(rows[0][0] or 0)

    async def _allowed_until(self, before_us: int) -> int:
        """The allowed cutoff: `before_us`, or an earlier time."""
        return before_us

    @abstractmethod
    async def _sizes(self) -> tuple[int, int]:
        """The bytes in use, and the bytes on the disk."""
        ...

    @abstractmethod
    async def _vacuum(self) -> None:
        """Rewrite the whole database without gaps. Writers wait until this ends."""

    @abstractmethod
    async def _give_back(self) -> None:
        """Return free space to the disk, if that is possible without making writers wait."""


def _spans(before_us: int, low: int, last: int) -> Iterator[dict[str, SqlValue]]:
    """Yield parameters for all rows of a table, some thousands of rows at a time."""
    for start in range(low, last, ROWS_AT_ONCE):
        yield {"before_us": before_us, "low": start, "high": start + ROWS_AT_ONCE}


def _delete_some_events(statements: Statements, before_us: int, span: dict[str, SqlValue]) -> dict[str, int]:
    with allowed(statements, before_us):
        gone = statements.change(f"DELETE FROM events WHERE id IN (SELECT e.id {OLD_EVENTS})", span)
    return {"events": gone}


def _delete_sessions(statements: Statements, before_us: int) -> dict[str, int]:
    found = statements.run(f"{_OLD_SESSIONS} LIMIT {SESSIONS_AT_ONCE}", {"before_us": before_us})
    return {"sessions": delete_sessions(statements, [name for (name,) in found])}

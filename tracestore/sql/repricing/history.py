"""The book of repricings: what each did, how far it came, what it replaced; and going back.

A run is begun before its first cost is written and finished in the transaction that makes its costs the current
ones. Between the two it says how far it has come; one that never finished was interrupted, or is under way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from bus.errors import StoreError

from ...queries import CallFilter
from ...sqlite.database import Database, Statements
from ...sqlite.repricing.sums import add_up_again, change_of, told
from .counts import Beside
from .run_costs import Difference, current_runs, difference, make_current


class RepriceRun(msgspec.Struct, frozen=True, kw_only=True):
    """One repricing in the file's history.

    id: its number. version, label: the price table's. where: only these calls. started_us, finished_us,
    undone_us: microseconds UTC; finished_us is None if it never came to its end. calls, unpriced,
    sum_before_nano_usd, sum_after_nano_usd, in_flight, estimated, unknown: as in `RepriceReport`; None until it
    is finished. last_call: the number of the last call that it is to price, as far as is known; done: of the
    last that it has priced. replaced: the runs that were current before, the first of them first; None in what
    an early version wrote. by_session: whether sessions are to be compared as well. finished_no: its place among
    the finished ones.
    """

    id: int
    version: str
    where: CallFilter
    started_us: int
    finished_us: int | None
    calls: int | None
    unpriced: int | None
    sum_before_nano_usd: int | None
    sum_after_nano_usd: int | None
    label: str = ""
    last_call: int | None = None
    done: int = 0
    by_session: bool = False
    replaced: tuple[int, ...] | None = None
    undone_us: int | None = None
    finished_no: int | None = None
    in_flight: int | None = None
    estimated: int | None = None
    unknown: int | None = None

    @property
    def state(self) -> Literal["interrupted", "finished", "undone"]:
        """``interrupted`` is also one that is under way now."""
        if self.finished_us is None:
            return "interrupted"
        return "finished" if self.undone_us is None else "undone"

    def current_after(self, before: tuple[int, ...]) -> list[int]:
        """The runs that are current once it has finished, if those were before."""
        return [self.id] if self.where == CallFilter() else [self.id, *(run for run in before if run != self.id)]


class CurrentPrices(msgspec.Struct, frozen=True):
    """Which costs are current.

    runs: the repricings whose costs are; of those that cover a call, the first goes. None: those at call time.
    versions: their price versions, in the same order. run: the latest repricing that finished.
    """

    runs: tuple[int, ...]
    versions: tuple[str, ...]
    run: RepriceRun | None

    @property
    def run_id(self) -> int:
        """The number of `run`; 0 if there is none."""
        return self.run.id if self.run is not None else 0


def begin(
    statements: Statements, version: str, where: CallFilter, now_us: int, last_call: int, *, by_session: bool
) -> int:
    """Enter a run; its number."""
    ((run_id,),) = statements.run(
        """
        INSERT INTO reprice_run (version, filter, started_us, last_call, by_session, replaced)
        VALUES (?, ?, ?, ?, ?, ?)
        RETURNING id
        """,
        (
            *(version, msgspec.json.encode(where).decode(), now_us, last_call, by_session),
            _encoded(current_runs(statements)),
        ),
    )
    return int(run_id)


def note_progress(statements: Statements, run_id: int, low: int, high: int) -> None:
    """Move a run on; to be called in the transaction of the chunk. Raises StoreError if another moved it."""
    if not statements.run(
        """
        UPDATE reprice_run
           SET done = ?, last_call = max(last_call, ?)
         WHERE id = ? AND done = ? AND finished_us IS NULL
        RETURNING id
        """,
        (high, high, run_id, low),
    ):
        raise StoreError(f"repricing {run_id} is being carried on by somebody else; nothing was changed here")


def finish(statements: Statements, run_id: int, beside: Beside, now_us: int) -> None:
    """Enter what a run did, and make its costs the current ones, in the transaction of its last calls.

    Raises StoreError, and so changes nothing, if the change of all costs isn't the one that it reports.
    """
    run = _by_number(statements, run_id)
    replaced = tuple(current_runs(statements))
    after = run.current_after(replaced)
    _check(
        statements,
        run_id,
        _changed(statements, replaced, after),
        anew=replaced != run.replaced or _is_stale(statements, run_id),
    )
    sums = told(statements, run_id)
    statements.run(
        """
        UPDATE reprice_run
           SET finished_us = ?, calls = ?, unpriced = ?, sum_before = ?, sum_after = ?, replaced = ?,
               in_flight = ?, estimated = ?, unknown = ?,
               finished_no = 1 + (SELECT coalesce(max(finished_no), 0) FROM reprice_run)
         WHERE id = ?
        """,
        (
            *(now_us, sums.calls, sums.unpriced, sums.before_nano_usd, sums.after_nano_usd),
            *(_encoded(replaced), beside.in_flight, beside.estimated, beside.unknown, run_id),
        ),
    )
    make_current(statements, after)


def _is_stale(statements: Statements, run_id: int) -> bool:
    return bool(statements.run("SELECT 1 FROM reprice_run WHERE id = ? AND add_up_again", (run_id,)))


def _changed(statements: Statements, before: tuple[int, ...], after: list[int]) -> Difference:
    """By how much all current costs change when other runs become the current ones."""
    old, new = difference(statements, before), difference(statements, after)
    return Difference(new.nano_usd - old.nano_usd, new.unpriced - old.unpriced)


def _check(statements: Statements, run_id: int, changed: Difference, *, anew: bool) -> None:
    """Let the sums of a run be those of its costs, which they needn't be if others changed the file meanwhile.

    anew: whether what was current, or a call, has changed since it began. Raises StoreError if the two can't be
    made to agree.
    """
    if not anew and change_of(statements, run_id) == changed:
        return
    add_up_again(statements, run_id)
    reported = change_of(statements, run_id)
    if reported != changed:
        raise StoreError(
            f"repricing {run_id} would change the current costs by {changed.nano_usd} nano-USD and"
            f" {changed.unpriced} unpriced calls, and it reports {reported.nano_usd} and {reported.unpriced};"
            " nothing was changed"
        )


async def undo(database: Database, now_us: int) -> RepriceRun:
    """Take the latest repricing back; the run as it stands now. Its costs stay in the file.

    Raises StoreError if there is none, and if other costs were chosen since.
    """
    return await database.write(lambda statements: _undo(statements, database.path, now_us))


def _undo(statements: Statements, path: Path, now_us: int) -> RepriceRun:
    run = next((run for run in _in_order_of_finish(statements) if run.state == "finished"), None)
    if run is None or run.replaced is None:
        raise StoreError(f"{path}: there is no repricing to undo")
    if current_runs(statements) != run.current_after(run.replaced):
        raise StoreError(
            f"{path}: other costs were chosen after repricing {run.id}, so undoing it would not lead back to them;"
            " choose a version, or those at call time"
        )
    make_current(statements, run.replaced)
    statements.run("UPDATE reprice_run SET undone_us = ? WHERE id = ?", (now_us, run.id))
    return msgspec.structs.replace(run, undone_us=now_us)


async def interrupted(database: Database, run_id: int | None) -> RepriceRun:
    """The run of that number, or the latest, that did not finish. Raises StoreError if there is none."""
    open_runs = [
        run for run in await history(database) if run.state == "interrupted" and run.last_call is not None
    ]
    for run in open_runs:
        if run_id is None or run.id == run_id:
            return run
    there = ", ".join(str(run.id) for run in open_runs) or "none"
    which = "" if run_id is None else f" with the number {run_id}"
    raise StoreError(f"{database.path}: there is no interrupted repricing{which}; interrupted are: {there}")


async def history(database: Database) -> list[RepriceRun]:
    """All repricings, the newest first."""
    return await database.look(lambda statements: _runs(statements, "ORDER BY r.id DESC"))


async def current_prices(database: Database) -> CurrentPrices:
    """Reads tables with a few rows."""

    def work(statements: Statements) -> CurrentPrices:
        runs = tuple(current_runs(statements))
        versions = {run.id: run.version for run in _runs(statements)} if runs else {}
        run = next(iter(_in_order_of_finish(statements)), None)
        return CurrentPrices(runs, tuple(versions[run_id] for run_id in runs), run)

    return await database.look(work)


_FIELDS = RepriceRun.__struct_fields__


def _runs(statements: Statements, which: str = "", values: tuple[int, ...] = ()) -> list[RepriceRun]:
    """Runs of the book. which: what follows FROM, with these values."""
    rows = statements.run(
        f"""
        SELECT r.id, r.version, r.filter, r.started_us, r.finished_us, r.calls, r.unpriced, r.sum_before,
               r.sum_after, coalesce(v.label, ''), r.last_call, r.done, r.by_session, r.replaced, r.undone_us,
               r.finished_no, r.in_flight, r.estimated, r.unknown
          FROM reprice_run AS r
          LEFT JOIN price_version AS v ON v.version = r.version
          {which}
        """,
        values,
    )
    found = []
    for row in rows:
        named = dict(zip(_FIELDS, row, strict=True))
        named["where"] = msgspec.json.decode(named["where"], type=CallFilter)
        named["by_session"] = bool(named["by_session"])
        if named["replaced"] is not None:
            named["replaced"] = msgspec.json.decode(named["replaced"], type=tuple[int, ...])
        found.append(RepriceRun(**named))
    return found


def _in_order_of_finish(statements: Statements) -> list[RepriceRun]:
    """Those that finished, the latest first."""
    return _runs(statements, "WHERE r.finished_no IS NOT NULL ORDER BY r.finished_no DESC")


def _by_number(statements: Statements, run_id: int) -> RepriceRun:
    (run,) = _runs(statements, "WHERE r.id = ?", (run_id,))
    return run


def _encoded(runs: tuple[int, ...] | list[int]) -> str:
    return msgspec.json.encode(runs).decode()

"""The history of repricings: what each did, how far it came, what it replaced; and the way back.

A run is entered before its first cost is written, and finished in the transaction that makes its costs the current
ones. Between the two it notes how far it has come. A run that never finished was interrupted, or is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.bus.errors import StoreError

from ...calls import CallFilter
from ...reports import CurrentPrices, RepriceRun
from ..connection import Database, Statements, greater
from .counts import CountsBeside
from .run_costs import Difference, current_runs, difference, make_current
from .sums import add_up_again, change_of, total_of


def begin(
    statements: Statements, version: str, where: CallFilter, now_us: int, last_call: int, *, by_session: bool
) -> int:
    """Enter a run, and return its number."""
    ((run_id,),) = statements.run(
        """
        INSERT INTO reprice_run (version, filter, started_us, last_call, by_session, replaced)
        VALUES (?, ?, ?, ?, ?, ?)
        RETURNING id
        """,
        (
            *(version, msgspec.json.encode(where).decode(), now_us, last_call, int(by_session)),
            _encoded(current_runs(statements)),
        ),
    )
    return int(run_id)


def note_progress(statements: Statements, run_id: int, low: int, high: int) -> None:
    """Move a run on, in the transaction of the chunk. Raises StoreError if another has moved it."""
    if not statements.change(
        f"""
        UPDATE reprice_run
           SET done = :high, last_call = {greater("last_call", ":high")}
         WHERE id = :run AND done = :low AND finished_us IS NULL
        """,
        {"run": run_id, "low": low, "high": high},
    ):
        raise StoreError(f"repricing {run_id} is being carried on by somebody else; nothing was changed here")


def finish(statements: Statements, run_id: int, beside: CountsBeside, now_us: int) -> None:
    """Enter what a run did, and make its costs the current ones, in the transaction of its last calls.

    Raises:
        StoreError: The change of all costs isn't the one that the run reports. Nothing is changed then.
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
    sums = total_of(statements, "reprice_sum", run_id)
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
    return bool(statements.run("SELECT 1 FROM reprice_run WHERE id = ? AND add_up_again = 1", (run_id,)))


def _changed(statements: Statements, before: tuple[int, ...], after: list[int]) -> Difference:
    """The change of all current costs when other runs become the current ones."""
    old, new = difference(statements, before), difference(statements, after)
    return Difference(new.nano_usd - old.nano_usd, new.unpriced - old.unpriced)


def _check(statements: Statements, run_id: int, changed: Difference, *, anew: bool) -> None:
    """Let the sums of a run be those of its costs; others may have changed the trace meanwhile.

    Args:
        statements: The connection, in the transaction that finishes the run.
        run_id: The number of the run.
        changed: The change of all current costs.
        anew: Whether the current runs, or a call of this run, have changed since it began.

    Raises:
        StoreError: The two can't be made to agree.
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
    """Take the latest repricing back, and return the run as it stands now. Its costs stay in the trace.

    Raises:
        StoreError: There is no repricing, or other costs were chosen since.
    """
    return await database.write(lambda statements: _undo(statements, database.name, now_us))


def _undo(statements: Statements, trace: str, now_us: int) -> RepriceRun:
    run = next((run for run in _in_order_of_finish(statements) if run.state == "finished"), None)
    if run is None or run.replaced is None:
        raise StoreError(f"{trace}: there is no repricing to undo")
    if current_runs(statements) != run.current_after(run.replaced):
        raise StoreError(
            f"{trace}: other costs were chosen after repricing {run.id}, so undoing it would not lead back to"
            " them; choose a version, or those at call time"
        )
    make_current(statements, run.replaced)
    statements.run("UPDATE reprice_run SET undone_us = ? WHERE id = ?", (now_us, run.id))
    return msgspec.structs.replace(run, undone_us=now_us)


async def interrupted(database: Database, run_id: int | None) -> RepriceRun:
    """The run of a number that did not finish, or the latest such run. Raises StoreError if there is none."""
    open_runs = [
        run for run in await history(database) if run.state == "interrupted" and run.last_call is not None
    ]
    for run in open_runs:
        if run_id is None or run.id == run_id:
            return run
    there = ", ".join(str(run.id) for run in open_runs) or "none"
    which = "" if run_id is None else f" with the number {run_id}"
    raise StoreError(f"{database.name}: there is no interrupted repricing{which}; interrupted are: {there}")


async def history(database: Database) -> list[RepriceRun]:
    """All repricings, the newest first."""
    return await database.look(lambda statements: _runs(statements, "ORDER BY r.id DESC"))


async def current_prices(database: Database) -> CurrentPrices:
    """The runs whose costs are current. It reads tables with a few rows."""

    def work(statements: Statements) -> CurrentPrices:
        runs = tuple(current_runs(statements))
        versions = {run.id: run.version for run in _runs(statements)} if runs else {}
        run = next(iter(_in_order_of_finish(statements)), None)
        return CurrentPrices(runs, tuple(versions[run_id] for run_id in runs), run)

    return await database.look(work)


_RENAMED = {
    "where": "r.filter",
    "sum_before_nano_usd": "r.sum_before",
    "sum_after_nano_usd": "r.sum_after",
    "label": "coalesce(v.label, '')",
}
_COLUMNS = {name: _RENAMED.get(name, f"r.{name}") for name in RepriceRun.__struct_fields__}
"""Each field of a run, and its expression."""


def _runs(statements: Statements, which: str = "", values: Sequence[int] = ()) -> list[RepriceRun]:
    """Runs of the history. `which` follows the FROM clause, and `values` are its parameters."""
    rows = statements.run(
        f"""
        SELECT {", ".join(_COLUMNS.values())}
          FROM reprice_run AS r
          LEFT JOIN price_version AS v ON v.version = r.version
          {which}
        """,
        values,
    )
    found = []
    for row in rows:
        named = dict(zip(_COLUMNS, row, strict=True))
        named["where"] = msgspec.json.decode(named["where"], type=CallFilter)
        named["by_session"] = bool(named["by_session"])
        if named["replaced"] is not None:
            named["replaced"] = msgspec.json.decode(named["replaced"], type=tuple[int, ...])
        found.append(RepriceRun(**named))
    return found


def _in_order_of_finish(statements: Statements) -> list[RepriceRun]:
    """The runs that finished, the latest first."""
    return _runs(statements, "WHERE r.finished_no IS NOT NULL ORDER BY r.finished_no DESC")


def _by_number(statements: Statements, run_id: int) -> RepriceRun:
    (run,) = _runs(statements, "WHERE r.id = ?", (run_id,))
    return run


def _encoded(runs: tuple[int, ...] | list[int]) -> str:
    return msgspec.json.encode(runs).decode()

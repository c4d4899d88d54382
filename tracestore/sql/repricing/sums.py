"""The sums that a repricing compares: the costs of its calls before and after, by model, day and session.

`reprice_sum` keeps the sums of each run, which the transactions of the costs themselves add to. `reprice_trial` is
a table of the same form that belongs to one connection; it holds the sums of a run that is only tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from ...reports import DayReprice, ModelReprice, RepriceSums, SessionReprice
from ...timestamps import iso_day
from ..calls.current_costs import CURRENT_NANO
from ..connection import Database, SqlValue, Statements, placeholders
from .run_costs import Difference, current_runs

SumTable: TypeAlias = Literal["reprice_sum", "reprice_trial"]

_KEY = ("run", "model", "day", "session")
SUMMED = (
    *("calls", "unpriced", "after", "unpriced_before", "before"),
    *("newly_priced", "newly_priced_nano", "no_longer_priced", "no_longer_priced_nano"),
)
"""The columns of both tables that are sums."""

_ADD_SUMS = f"""
    INSERT INTO {{table}} ({", ".join((*_KEY, *SUMMED))})
    VALUES ({placeholders(len(_KEY) + len(SUMMED))})
        ON CONFLICT ({", ".join(_KEY)}) DO UPDATE SET
           {", ".join(f"{name} = {{table}}.{name} + excluded.{name}" for name in SUMMED)}
"""

_START_FROM_BASE = """
    INSERT INTO reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    SELECT r.id, d.model, d.day, '', 0, 0, 0, sum(d.unpriced), sum(d.cost_nano)
      FROM reprice_run AS r
      JOIN repriced_sums AS d ON d.run = r.base
     WHERE r.id = ?
     GROUP BY r.id, d.model, d.day
"""

_ADD_UP_AGAIN = f"""
    INSERT INTO reprice_sum ({", ".join((*_KEY, *SUMMED))})
    SELECT run, model, day, session, count(*), count(*) - count(nano), coalesce(sum(nano), 0),
           count(*) - count(was), coalesce(sum(was), 0),
           count(*) FILTER (WHERE was IS NULL AND nano IS NOT NULL),
           coalesce(sum(nano) FILTER (WHERE was IS NULL), 0),
           count(*) FILTER (WHERE nano IS NULL AND was IS NOT NULL),
           coalesce(sum(was) FILTER (WHERE nano IS NULL), 0)
      FROM (SELECT k.run, c.model, c.day, {{session}} AS session, k.cost_nano AS nano, {CURRENT_NANO} AS was
              FROM call_cost AS k
              JOIN calls AS c ON c.id = k.call_id
             WHERE k.run = ?) AS priced
     GROUP BY run, model, day, session
"""

_TOTALS = {
    "calls": "sum(calls)",
    "unpriced": "sum(unpriced)",
    "unpriced_before": "sum(unpriced_before)",
    "before_nano_usd": "sum(before - no_longer_priced_nano)",
    "after_nano_usd": "sum(after - newly_priced_nano)",
    "newly_priced": "sum(newly_priced)",
    "newly_priced_nano_usd": "sum(newly_priced_nano)",
    "no_longer_priced": "sum(no_longer_priced)",
    "no_longer_priced_nano_usd": "sum(no_longer_priced_nano)",
}
"""Fields of `RepriceSums`, and their expressions."""


class Group(NamedTuple):
    """Sums over the calls of one model, day and session. Amounts are nano-USD."""

    provider: str
    model: str
    day: int
    session: str
    """The session; empty where sessions are not asked for."""
    calls: int
    unpriced: int
    after: int
    unpriced_at_call: int
    at_call: int
    unpriced_before: int
    before: int
    newly_priced: int = 0
    newly_priced_nano: int = 0
    no_longer_priced: int = 0
    no_longer_priced_nano: int = 0


class ComparedSums(NamedTuple):
    """The sums of one run, over all of its calls and line by line."""

    total: RepriceSums
    models: tuple[ModelReprice, ...]
    days: tuple[DayReprice, ...]
    sessions: tuple[SessionReprice, ...]


def session_of(by_session: bool) -> str:
    """The session of a call ``c`` as the sums have it."""
    return "coalesce(c.session_id, '')" if by_session else "''"


def start_from_base(statements: Statements, run_id: int) -> None:
    """Give a run of all calls a base, if one other run is current. Call it as the run begins.

    The sums before begin with what is known of the base; see `tracestore.sql.repricing.comparison`.
    """
    runs = current_runs(statements)
    if len(runs) == 1:
        statements.run("UPDATE reprice_run SET base = ? WHERE id = ?", (runs[0], run_id))
        statements.run(_START_FROM_BASE, (run_id,))


def add_to_sums(statements: Statements, table: SumTable, run_id: int, groups: Iterable[Group]) -> None:
    """Add groups to those of a run."""
    columns = (*_KEY[1:], *SUMMED)
    rows: list[list[SqlValue]] = [[run_id, *(getattr(of, name) for name in columns)] for of in groups]
    statements.run_many(_ADD_SUMS.format(table=table), rows)


def add_up_again(statements: Statements, run_id: int) -> None:
    """Work the sums of a run out anew from its costs and the current ones, before the run is made current."""
    ((by_session,),) = statements.run("SELECT by_session FROM reprice_run WHERE id = ?", (run_id,))
    statements.run("DELETE FROM reprice_sum WHERE run = ?", (run_id,))
    statements.run(_ADD_UP_AGAIN.format(session=session_of(bool(by_session))), (run_id,))


def change_of(statements: Statements, run_id: int) -> Difference:
    """The change of the current costs that the sums of a run tell, over all of its calls."""
    ((nano, unpriced),) = statements.run(
        """
        SELECT coalesce(sum(after - before), 0), coalesce(sum(unpriced - unpriced_before), 0)
          FROM reprice_sum WHERE run = ?
        """,
        (run_id,),
    )
    return Difference(nano, unpriced)


_SELECT_TOTALS = ", ".join(f"coalesce({total}, 0)" for total in _TOTALS.values())


def total_of(statements: Statements, table: SumTable, run_id: int) -> RepriceSums:
    """The sums of a run over all of its calls."""
    (row,) = statements.run(f"SELECT {_SELECT_TOTALS} FROM {table} WHERE run = ?", (run_id,))
    return RepriceSums(**dict(zip(_TOTALS, row, strict=True)))


async def sums_of_run(database: Database, table: SumTable, run_id: int) -> ComparedSums:
    """The sums of a run, with the lines of its report."""

    async def lines(column: str, order: str) -> list[tuple[str, dict[str, int]]]:
        groups = f"GROUP BY {column} HAVING sum(calls) > 0 ORDER BY {order}"
        rows = await database.read(
            f"SELECT {column}, {_SELECT_TOTALS} FROM {table} WHERE run = ? {groups}", (run_id,)
        )
        return [(name, dict(zip(_TOTALS, numbers, strict=True))) for name, *numbers in rows]

    sessions = await lines("session", "sum(after) DESC, session")
    if [name for name, _ in sessions] == [""]:
        sessions = []  # they were not asked for
    return ComparedSums(
        await database.look(lambda statements: total_of(statements, table, run_id)),
        tuple(ModelReprice(model=name, **sums) for name, sums in await lines("model", "sum(after) DESC, model")),
        tuple(DayReprice(day=iso_day(int(day)), **sums) for day, sums in await lines("day", "day")),
        tuple(SessionReprice(session_id=name, **sums) for name, sums in sessions),
    )

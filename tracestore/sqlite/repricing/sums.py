"""What a repricing compares: what its calls cost before and after, by model, day and session.

`reprice_sum` has the sums of each run: one in the file, which the transactions of the costs themselves add to, and
one of this connection, for runs that are only tried.

What calls cost before is looked up with them. A run of all calls over one other run, its base, needn't do that
for each of them: the sums begin with what the file knows of the base (see `run_costs`), and the run adds what its
calls cost at call time. Only calls that one of the two sides doesn't price are then looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypedDict, TypeVar

from ...queries import CURRENT_NANO
from ...reports import DayReprice, ModelReprice, RepriceSums, SessionReprice
from ...sql.repricing.run_costs import Difference, current_runs
from ...timestamps import iso_day
from ..database import Database, Statements
from ..insert import SqlValue
from .pricing import Pricer

_S = TypeVar("_S", bound=RepriceSums)

_SUMMED = (
    *("calls", "unpriced", "after", "unpriced_before", "before"),
    *("newly_priced", "newly_priced_nano", "no_longer_priced", "no_longer_priced_nano"),
)
_COLUMNS = ("run", "model", "day", "session", *_SUMMED)

TEMPORARY_TABLES = (
    f"""
    CREATE TEMP TABLE IF NOT EXISTS reprice_sum (
        run      INTEGER NOT NULL,
        model    TEXT NOT NULL,
        day      INTEGER NOT NULL,
        session  TEXT NOT NULL,
        {", ".join(f"{name} INTEGER NOT NULL" for name in _SUMMED)},
        PRIMARY KEY (run, model, day, session)
    ) WITHOUT ROWID
    """,
    "DELETE FROM temp.reprice_sum",
    "CREATE TEMP TABLE IF NOT EXISTS reprice_before (id INTEGER PRIMARY KEY, nano)",
)


class _Before(NamedTuple):
    """Where the costs before are, as SQL. source: rows `a` of what was priced, and what they are joined with;
    nano: the cost before, of one call. values: the parameters of source."""

    source: str
    nano: str
    values: tuple[SqlValue, ...] = ()
    only: str = "1"


# Of each group: calls, those with a cost and its sum; the same of the costs at call time, and of those before.
_SUMS = """
    SELECT a.place, {session}, count(*), count(a.nano), coalesce(sum(a.nano), 0),
           count(a.at_call), coalesce(sum(a.at_call), 0),
           {before}
      FROM {source}
     GROUP BY a.place{also}
"""
# Calls that only one side prices, so of the two counts and sums each call is in one.
_ONE_SIDED = """
    SELECT a.place, {session}, count(a.nano), coalesce(sum(a.nano), 0), count({nano}), coalesce(sum({nano}), 0)
      FROM {source}
     WHERE {only} AND (a.nano IS NULL) <> ({nano} IS NULL)
     GROUP BY a.place{also}
"""

# The costs before are with the calls, or in a table of those that have another one now. To copy these from one
# stretch of `call_cost` takes less than to look for each in the whole of it.
_AT_CALL = _Before("temp.reprice_cost AS a", "a.at_call")
_CURRENT = _Before(
    "temp.reprice_cost AS a LEFT JOIN temp.reprice_before AS b ON b.id = a.id",
    "CASE WHEN b.id IS NULL THEN a.at_call ELSE b.nano END",
)
_COPY_BEFORE = """
    INSERT OR IGNORE INTO temp.reprice_before (id, nano)
    SELECT k.call_id, k.cost_nano
      FROM call_cost AS k
     WHERE k.run = ? AND k.call_id > ? AND k.call_id <= ?
"""
# By the index that has those only: SQLite would rather walk all costs of the stretch.
_UNPRICED_IN = """
    SELECT call_id FROM call_cost INDEXED BY call_cost_unpriced
     WHERE run = ? AND call_id > ? AND call_id <= ? AND cost_nano IS NULL
"""
_OF_BASE = _Before(
    "temp.reprice_cost AS a LEFT JOIN call_cost AS b ON b.run = ? AND b.call_id = a.id",
    "CASE WHEN b.call_id IS NULL THEN a.at_call ELSE b.cost_nano END",
    only=f"(a.nano IS NULL OR a.at_call IS NULL OR a.id IN ({_UNPRICED_IN}))",
)

_ADD_SUMS = f"""
    INSERT INTO {{table}} ({", ".join(_COLUMNS)})
    VALUES ({", ".join("?" * len(_COLUMNS))})
        ON CONFLICT (run, model, day, session) DO UPDATE SET
           {", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMMED)}
"""

_START_FROM_BASE = """
    INSERT INTO main.reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    SELECT r.id, d.model, d.day, '', 0, 0, 0, sum(d.unpriced), sum(d.cost_nano)
      FROM reprice_run AS r
      JOIN repriced_sums AS d ON d.run = r.base
     WHERE r.id = ?
     GROUP BY d.model, d.day
"""

_ADD_UP_AGAIN = f"""
    INSERT INTO main.reprice_sum ({", ".join(_COLUMNS)})
    SELECT run, model, day, session, count(*), count(*) - count(nano), coalesce(sum(nano), 0),
           count(*) - count(was), coalesce(sum(was), 0),
           count(*) FILTER (WHERE was IS NULL AND nano IS NOT NULL),
           coalesce(sum(nano) FILTER (WHERE was IS NULL), 0),
           count(*) FILTER (WHERE nano IS NULL AND was IS NOT NULL),
           coalesce(sum(was) FILTER (WHERE nano IS NULL), 0)
      FROM (SELECT k.run, c.model, c.day, CASE WHEN ? THEN coalesce(c.session_id, '') ELSE '' END AS session,
                   k.cost_nano AS nano, {CURRENT_NANO} AS was
              FROM call_cost AS k
              JOIN calls AS c ON c.id = k.call_id
             WHERE k.run = ?)
     GROUP BY model, day, session
"""


class Group(NamedTuple):
    """Sums over calls of one model, day and session, in nano-USD; session is empty where it is not asked for."""

    provider: str
    model: str
    day: int
    session: str
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


class Sums(TypedDict):
    """The fields of a report that are sums."""

    calls: int
    unpriced: int
    unpriced_before: int
    sum_before_nano_usd: int
    sum_after_nano_usd: int
    newly_priced: int
    newly_priced_nano_usd: int
    no_longer_priced: int
    no_longer_priced_nano_usd: int
    models: tuple[ModelReprice, ...]
    days: tuple[DayReprice, ...]
    sessions: tuple[SessionReprice, ...]


def start_from_base(statements: Statements, run_id: int) -> None:
    """Let a run of all calls have a base, if one run is current; to be called as it begins."""
    runs = current_runs(statements)
    if len(runs) == 1:
        statements.run("UPDATE reprice_run SET base = ? WHERE id = ?", (runs[0], run_id))
        statements.run(_START_FROM_BASE, (run_id,))


def compared(statements: Statements, pricer: Pricer, run_id: int, low: int, high: int) -> list[Group]:
    """The sums of the calls that were priced last, of those from `low`, exclusive, to `high`.

    The costs before are those that are current now; of a run with a base those at call time, see above.
    """
    base = statements.run("SELECT base FROM reprice_run WHERE id = ? AND base IS NOT NULL", (run_id,))
    if base:
        span = (base[0][0], low, high)
        one_sided = _OF_BASE._replace(values=(span[0], *span))
        some = bool(statements.run(f"{_UNPRICED_IN} LIMIT 1", span))
        return _grouped(statements, pricer, _AT_CALL, one_sided, look=some)
    runs = current_runs(statements)
    if not runs:
        return _grouped(statements, pricer, _AT_CALL, _AT_CALL)
    statements.run("DELETE FROM temp.reprice_before")
    for run in runs:
        statements.run(_COPY_BEFORE, (run, low, high))
    return _grouped(statements, pricer, _CURRENT, _CURRENT)


def _grouped(
    statements: Statements, pricer: Pricer, before: _Before, one_sided: _Before, *, look: bool = False
) -> list[Group]:
    """look: whether there may be calls that one side alone prices, though nothing else says so."""
    session, also = ("a.session", ", a.session") if pricer.by_session else ("''", "")
    counted = f"count({before.nano}), coalesce(sum({before.nano}), 0)"
    sql = _SUMS.format(source=before.source, before=counted, session=session, also=also)
    groups: dict[tuple[int, str], Group] = {}
    for place, session_id, calls, priced, after, *old in statements.run(sql, before.values):
        priced_at_call, at_call, priced_before, before_nano = old
        groups[place, session_id] = Group(
            *(*pricer.model_and_day(place), session_id, calls, calls - priced, after),
            *(calls - priced_at_call, at_call, calls - priced_before, before_nano),
        )
    if look or any(of.unpriced or of.unpriced_at_call or of.unpriced_before for of in groups.values()):
        sql = _ONE_SIDED.format(**one_sided._asdict(), session=session, also=also)
        for place, session_id, newly, newly_nano, no_longer, no_longer_nano in statements.run(
            sql, one_sided.values
        ):
            groups[place, session_id] = groups[place, session_id]._replace(
                newly_priced=newly,
                newly_priced_nano=newly_nano,
                no_longer_priced=no_longer,
                no_longer_priced_nano=no_longer_nano,
            )
    return list(groups.values())


def add_to_sums(
    statements: Statements,
    table: Literal["main.reprice_sum", "temp.reprice_sum"],
    run_id: int,
    groups: Iterable[Group],
) -> None:
    """Add groups to those of a run."""
    rows: list[list[SqlValue]] = [[run_id, *(getattr(of, name) for name in _COLUMNS[1:])] for of in groups]
    statements.run_many(_ADD_SUMS.format(table=table), rows)


def add_up_again(statements: Statements, run_id: int) -> None:
    """Work the sums of a run out anew, from its costs and what is current: before it is made current itself."""
    ((by_session,),) = statements.run("SELECT by_session FROM reprice_run WHERE id = ?", (run_id,))
    statements.run("DELETE FROM main.reprice_sum WHERE run = ?", (run_id,))
    statements.run(_ADD_UP_AGAIN, (by_session, run_id))


def change_of(statements: Statements, run_id: int) -> Difference:
    """By how much the sums of a run say that the current costs change, over all of its calls."""
    ((nano, unpriced),) = statements.run(
        """
        SELECT coalesce(sum(after - before), 0), coalesce(sum(unpriced - unpriced_before), 0)
          FROM main.reprice_sum WHERE run = ?
        """,
        (run_id,),
    )
    return Difference(nano, unpriced)


_TOLD = (
    "sum(calls), sum(unpriced), sum(unpriced_before), sum(before - no_longer_priced_nano),"
    " sum(after - newly_priced_nano), sum(newly_priced), sum(newly_priced_nano), sum(no_longer_priced),"
    " sum(no_longer_priced_nano)"
)
_FIELDS = RepriceSums.__struct_fields__[:9]


def told(statements: Statements, run_id: int) -> RepriceSums:
    """The sums of a run that is in the file, over all of its calls."""
    ((*numbers,),) = statements.run(f"SELECT {_TOLD} FROM main.reprice_sum WHERE run = ?", (run_id,))
    return RepriceSums(**{name: number or 0 for name, number in zip(_FIELDS, numbers, strict=True)})


async def sums_of(database: Database, table: Literal["main.reprice_sum", "temp.reprice_sum"], run_id: int) -> Sums:
    """What a run has added up."""

    async def by(column: str, order: str) -> list[tuple[str, dict[str, int]]]:
        groups = f"GROUP BY {column} HAVING sum(calls) > 0 ORDER BY {order}"
        rows = await database.read(f"SELECT {column}, {_TOLD} FROM {table} WHERE run = ? {groups}", (run_id,))
        return [(name, dict(zip(_FIELDS, numbers, strict=True))) for name, *numbers in rows]

    models = [ModelReprice(model=name, **sums) for name, sums in await by("model", "sum(after) DESC, model")]
    days = [DayReprice(day=iso_day(int(day)), **sums) for day, sums in await by("day", "day")]
    sessions = [
        SessionReprice(session_id=name, **sums) for name, sums in await by("session", "sum(after) DESC, session")
    ]

    def total(name: str) -> int:
        return sum(getattr(row, name) for row in models)

    return {
        "calls": total("calls"),
        "unpriced": total("unpriced"),
        "unpriced_before": total("unpriced_before"),
        "sum_before_nano_usd": total("before_nano_usd"),
        "sum_after_nano_usd": total("after_nano_usd"),
        "newly_priced": total("newly_priced"),
        "newly_priced_nano_usd": total("newly_priced_nano_usd"),
        "no_longer_priced": total("no_longer_priced"),
        "no_longer_priced_nano_usd": total("no_longer_priced_nano_usd"),
        "models": tuple(models),
        "days": tuple(days),
        "sessions": () if [row.session_id for row in sessions] in ([], [""]) else tuple(sessions),
    }

"""What a repricing compares: what its calls cost before and after, by model, day and session.

`reprice_sum` has the sums of each run: one in the file, which the transactions of the costs themselves add to, and
one of this connection, for runs that are only tried.

What calls cost before is looked up with them. A run of all calls over one current version, its base, needn't do
that: the file knows by how much the costs under that version differ from those at call time (`repriced_sums`). The
sums of such a run begin with that difference, of all calls at once, and it adds what they cost at call time. If a
call goes, or changes, before its turn, triggers change the sums with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypedDict

from .call_sums import repriced_summands
from .database import Database, Statements
from .insert import SqlValue
from .moments import iso_day
from .price_sql import Pricer
from .reprice_runs import DayReprice, ModelReprice, SessionReprice

TEMPORARY_TABLES = (
    """
    CREATE TEMP TABLE IF NOT EXISTS reprice_sum (
        run              INTEGER NOT NULL,
        model            TEXT NOT NULL,
        day              INTEGER NOT NULL,
        session          TEXT NOT NULL,
        calls            INTEGER NOT NULL,
        unpriced         INTEGER NOT NULL,
        after            INTEGER NOT NULL,
        unpriced_before  INTEGER NOT NULL,
        before           INTEGER NOT NULL,
        PRIMARY KEY (run, model, day, session)
    ) WITHOUT ROWID
    """,
    "DELETE FROM temp.reprice_sum",
    "CREATE TEMP TABLE IF NOT EXISTS reprice_before (id INTEGER PRIMARY KEY, nano)",
)

# Of each group: calls, those with a cost and its sum; the same of the costs at call time, and of those before.
_SUMS = """
    SELECT a.place, {session}, count(*), count(a.nano), coalesce(sum(a.nano), 0),
           count(a.at_call), coalesce(sum(a.at_call), 0),
           {before}
      FROM {source}
     GROUP BY a.place{also}
"""

# Where the costs before are: with the calls, or in a table of those that have another one now. To copy these from
# one stretch of `call_cost` takes less than to look for each in the whole of it.
_AT_CALL = ("temp.reprice_cost AS a", "count(a.at_call), coalesce(sum(a.at_call), 0)")
_BEFORE = "CASE WHEN b.id IS NULL THEN a.at_call ELSE b.nano END"
_CURRENT = (
    "temp.reprice_cost AS a LEFT JOIN temp.reprice_before AS b ON b.id = a.id",
    f"count({_BEFORE}), coalesce(sum({_BEFORE}), 0)",
)
_COPY_BEFORE = """
    INSERT OR IGNORE INTO temp.reprice_before (id, nano)
    SELECT k.call_id, k.cost_nano
      FROM call_cost AS k
     WHERE k.price_version = ? AND k.call_id > ? AND k.call_id <= ?
"""

_ADD_SUMS = """
    INSERT INTO {table} (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (run, model, day, session) DO UPDATE SET
           calls = calls + excluded.calls,
           unpriced = unpriced + excluded.unpriced,
           after = after + excluded.after,
           unpriced_before = unpriced_before + excluded.unpriced_before,
           before = before + excluded.before
"""


_START_FROM_BASE = """
    INSERT INTO main.reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
    SELECT r.id, d.model, d.day, '', 0, 0, 0, sum(d.unpriced), sum(d.cost_nano)
      FROM reprice_run AS r
      JOIN repriced_sums AS d ON d.price_version = r.base
     WHERE r.id = ?
     GROUP BY d.model, d.day
"""


def _of_runs_to_come(of: str, call: str, cost: str, sign: str) -> str:
    """Add or, with a sign, take the difference of one call's costs: of runs over that version, yet to come to it.

    of: joins the run `r` with the rows called `call` and `cost`, and ends with a condition.
    """
    _, nano, unpriced = repriced_summands(cost, call)
    return f"""
        INSERT INTO reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
        SELECT r.id, {call}.model, {call}.day, '', 0, 0, 0, {sign}{unpriced}, {sign}{nano}
          FROM reprice_run AS r
          {of}
           AND r.finished_us IS NULL AND {cost}.call_id > r.done AND {cost}.call_id <= r.last_call
            ON CONFLICT (run, model, day, session) DO UPDATE SET
               unpriced_before = unpriced_before + excluded.unpriced_before,
               before = before + excluded.before
    """


_OF_COST = "JOIN calls AS c ON c.id = OLD.call_id WHERE r.base = OLD.price_version"
_OF_CALL = "JOIN call_cost AS k ON k.price_version = r.base AND k.call_id = OLD.id WHERE r.base IS NOT NULL"

REPRICE_BASE = (
    "ALTER TABLE reprice_run ADD COLUMN base TEXT",  # the version; NULL: the run has none
    "CREATE INDEX reprice_run_by_base ON reprice_run (base) WHERE finished_us IS NULL AND base IS NOT NULL",
    f"""
    CREATE TRIGGER call_to_reprice_goes AFTER DELETE ON call_cost
    BEGIN {_of_runs_to_come(_OF_COST, "c", "OLD", "-")}; END
    """,
    f"""
    CREATE TRIGGER call_to_reprice_changes
    AFTER UPDATE OF day, model, usage_source, cost_nano ON calls
    WHEN OLD.usage_source IS NOT NULL
     AND (OLD.day, OLD.model, OLD.usage_source, OLD.cost_nano)
         IS NOT (NEW.day, NEW.model, NEW.usage_source, NEW.cost_nano)
    BEGIN
        {_of_runs_to_come(_OF_CALL, "OLD", "k", "-")};
        {_of_runs_to_come(_OF_CALL, "NEW", "k", "")};
    END
    """,
)
"""A run's base, and what keeps the sums right that begin with it."""


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


class Sums(TypedDict):
    """The fields of a report that are sums."""

    calls: int
    unpriced: int
    unpriced_before: int
    sum_before_nano_usd: int
    sum_after_nano_usd: int
    models: tuple[ModelReprice, ...]
    days: tuple[DayReprice, ...]
    sessions: tuple[SessionReprice, ...]


def start_from_base(statements: Statements, run_id: int) -> None:
    """Let a run of all calls have a base, if one version is current; to be called as it begins."""
    versions = statements.run("SELECT version FROM current_version")
    if len(versions) == 1:
        statements.run("UPDATE reprice_run SET base = ? WHERE id = ?", (versions[0][0], run_id))
        statements.run(_START_FROM_BASE, (run_id,))


def compared(statements: Statements, pricer: Pricer, run_id: int, low: int, high: int) -> list[Group]:
    """The sums of the calls that were priced last, of those from `low`, exclusive, to `high`.

    The costs before are those that are current now; of a run with a base those at call time, see above.
    """
    versions = statements.run(
        """
        SELECT version FROM current_version
         WHERE NOT EXISTS (SELECT 1 FROM reprice_run WHERE id = ? AND base IS NOT NULL)
         ORDER BY position
        """,
        (run_id,),
    )
    if not versions:
        return compared_at_call(statements, pricer)
    statements.run("DELETE FROM temp.reprice_before")
    for (version,) in versions:
        statements.run(_COPY_BEFORE, (version, low, high))
    return _grouped(statements, pricer, *_CURRENT)


def compared_at_call(statements: Statements, pricer: Pricer) -> list[Group]:
    """The same, where the costs before are those at call time."""
    return _grouped(statements, pricer, *_AT_CALL)


def _grouped(statements: Statements, pricer: Pricer, source: str, before: str) -> list[Group]:
    session, also = ("a.session", ", a.session") if pricer.by_session else ("''", "")
    sql = _SUMS.format(source=source, before=before, session=session, also=also)
    groups = []
    for place, session_id, calls, priced, after, *old in statements.run(sql):
        priced_at_call, at_call, priced_before, before_nano = old
        groups.append(
            Group(
                *(*pricer.model_and_day(place), session_id, calls, calls - priced, after),
                *(calls - priced_at_call, at_call, calls - priced_before, before_nano),
            )
        )
    return groups


def add_to_sums(statements: Statements, table: str, run_id: int, groups: Iterable[Group]) -> None:
    """Add groups to those of a run."""
    rows: list[list[SqlValue]] = [
        [run_id, of.model, of.day, of.session, of.calls, of.unpriced, of.after, of.unpriced_before, of.before]
        for of in groups
    ]
    statements.run_many(_ADD_SUMS.format(table=table), rows)


async def sums_of(database: Database, table: Literal["main.reprice_sum", "temp.reprice_sum"], run_id: int) -> Sums:
    """What a run has added up."""
    columns = "sum(calls), sum(unpriced), sum(before), sum(after), sum(unpriced_before)"

    async def by(column: str, order: str) -> list[tuple[str, int, int, int, int, int]]:
        groups = f"GROUP BY {column} HAVING sum(calls) > 0 ORDER BY {order}"
        rows = await database.read(f"SELECT {column}, {columns} FROM {table} WHERE run = ? {groups}", (run_id,))
        return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]

    models = [ModelReprice(*row) for row in await by("model", "sum(after) DESC, model")]
    days = [DayReprice(iso_day(int(day)), *numbers) for day, *numbers in await by("day", "day")]
    sessions = [SessionReprice(*row) for row in await by("session", "sum(after) DESC, session")]
    return {
        "calls": sum(row.calls for row in models),
        "unpriced": sum(row.unpriced for row in models),
        "unpriced_before": sum(row.unpriced_before for row in models),
        "sum_before_nano_usd": sum(row.before_nano_usd for row in models),
        "sum_after_nano_usd": sum(row.after_nano_usd for row in models),
        "models": tuple(models),
        "days": tuple(days),
        "sessions": () if [row.session_id for row in sessions] in ([], [""]) else tuple(sessions),
    }

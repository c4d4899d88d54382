"""The comparison of a repricing: sums of costs before and after, and the other counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from callboard.bus.clock import iso_day

from ..call_columns import CallFilter
from ..reports import DayReprice, ModelReprice, RepriceReport, RepriceSums, SessionReprice
from .call_rows import CURRENT_NANO, condition, usage_unknown
from .connection import Database, PricingDialect, SqlValue, Statements, TemporaryTable, placeholders
from .pricing import Pricer
from .sums import KEY, REPRICED, Difference, added, current_runs

# --- The sums of a repricing ---
#
# The sums are the costs of a run's calls before and after, by model, day and session. `reprice_sum` contains the
# sums of each run; the transactions that store costs add to it. `reprice_trial` is a table of the same form on one
# connection, with the sums of a dry run.


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
"""The expression for each field of `RepriceSums`."""


class Group(NamedTuple):
    """Sums over the calls of one model, day and session. Amounts are in nano-USD."""

    provider: str
    model: str
    day: int
    session: str
    """The session; empty if sessions were not requested."""
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
    """The sums of one run: over all its calls, and for each line of its report."""

    total: RepriceSums
    models: tuple[ModelReprice, ...]
    days: tuple[DayReprice, ...]
    sessions: tuple[SessionReprice, ...]


def session_of(by_session: bool) -> str:
    """The SQL for the session of a call ``c`` in the sums; empty unless sessions are compared."""
    return "coalesce(c.session_id, '')" if by_session else "''"


def start_from_base(statements: Statements, run_id: int) -> None:
    """At the start of a run of all calls: if exactly one other run is current, use it as the base.

    The run's earlier costs then start with the sums of the base.
    """
    runs = current_runs(statements)
    if len(runs) == 1:
        statements.run("UPDATE reprice_run SET base = ? WHERE id = ?", (runs[0], run_id))
        statements.run(_START_FROM_BASE, (run_id,))


def add_to_sums(statements: Statements, table: SumTable, run_id: int, groups: Iterable[Group]) -> None:
    columns = (*_KEY[1:], *SUMMED)
    rows: list[list[SqlValue]] = [[run_id, *(getattr(of, name) for name in columns)] for of in groups]
    statements.run_many(_ADD_SUMS.format(table=table), rows)


_ADD_REPRICED = added(
    *("repriced_sums", ("run", *KEY), REPRICED), f"VALUES ({placeholders(1 + len(KEY) + len(REPRICED))})"
)


def add_repriced(statements: Statements, run_id: int, groups: Iterable[Group]) -> None:
    """Add the differences of a run's new costs to the costs at call time to `repriced_sums`."""
    rows: list[list[SqlValue]] = [
        [
            *(run_id, of.day, of.provider, of.model),
            *(of.calls, of.after - of.at_call, of.unpriced - of.unpriced_at_call),
        ]
        for of in groups
    ]
    statements.run_many(_ADD_REPRICED, rows)


def add_up_again(statements: Statements, run_id: int) -> None:
    """Recalculate the sums of a run from its costs and the current costs, before the run becomes current."""
    ((by_session,),) = statements.run("SELECT by_session FROM reprice_run WHERE id = ?", (run_id,))
    statements.run("DELETE FROM reprice_sum WHERE run = ?", (run_id,))
    statements.run(_ADD_UP_AGAIN.format(session=session_of(bool(by_session))), (run_id,))


def change_of(statements: Statements, run_id: int) -> Difference:
    """The change of the current costs over all calls of a run, from its sums."""
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
    (row,) = statements.run(f"SELECT {_SELECT_TOTALS} FROM {table} WHERE run = ?", (run_id,))
    return RepriceSums(**dict(zip(_TOTALS, row, strict=True)))


async def sums_of_run(database: Database, table: SumTable, run_id: int) -> ComparedSums:
    async def lines(column: str, order: str) -> list[tuple[str, dict[str, int]]]:
        groups = f"GROUP BY {column} HAVING sum(calls) > 0 ORDER BY {order}"
        rows = await database.read(
            f"SELECT {column}, {_SELECT_TOTALS} FROM {table} WHERE run = ? {groups}", (run_id,)
        )
        return [(name, dict(zip(_TOTALS, numbers, strict=True))) for name, *numbers in rows]

    sessions = await lines("session", "sum(after) DESC, session")
    if [name for name, _ in sessions] == [""]:
        sessions = []  # sessions were not requested
    return ComparedSums(
        await database.look(lambda statements: total_of(statements, table, run_id)),
        tuple(ModelReprice(model=name, **sums) for name, sums in await lines("model", "sum(after) DESC, model")),
        tuple(DayReprice(day=iso_day(int(day)), **sums) for day, sums in await lines("day", "day")),
        tuple(SessionReprice(session_id=name, **sums) for name, sums in sessions),
    )


# --- Comparing the last priced calls ---
#
# The costs before are looked up with the calls. A run of all calls that follows exactly one current run, its base,
# skips most look-ups. Its sums start with the sums of the base, and the run adds the costs at call time. Only
# calls with a price on one side are examined one by one.


_TABLES = (
    TemporaryTable(
        "reprice_trial",
        {
            "run": "INTEGER",
            "model": "TEXT",
            "day": "INTEGER",
            "session": "TEXT",
            **dict.fromkeys(SUMMED, "INTEGER"),
        },
        ("run", "model", "day", "session"),
    ),
    TemporaryTable("reprice_before", {"id": "INTEGER", "nano": "INTEGER"}, ("id",)),
)


def prepare(statements: Statements) -> None:
    dialect = statements.dialect.pricing
    for table in _TABLES:
        for sql in (*dialect.made(table), dialect.emptied(table.name)):
            statements.run(sql)


class _Before(NamedTuple):
    """The SQL for reading the earlier costs."""

    source: str
    """The rows ``a`` that were priced, and the tables that they are joined with."""
    nano: str
    """The earlier cost of one call."""
    values: tuple[SqlValue, ...] = ()
    """The parameters of `source` and of `only`."""
    only: str = "TRUE"
    """The condition for calls to read one by one, because only one of the two costs exists."""


# Columns of each group: all calls, then the count and the sum of the costs now, at call time, and before.
_SUMS = """
    SELECT a.place, {session}, count(*), count(a.nano), coalesce(sum(a.nano), 0),
           count(a.at_call), coalesce(sum(a.at_call), 0),
           {before}
      FROM {source}
     GROUP BY a.place{also}
"""
# Calls with a price on one side only, so each call is in one of the two counts.
_ONE_SIDED = """
    SELECT a.place, {session}, count(a.nano), coalesce(sum(a.nano), 0), count({nano}), coalesce(sum({nano}), 0)
      FROM {source}
     WHERE {only} AND (a.nano IS NULL) <> ({nano} IS NULL)
     GROUP BY a.place{also}
"""

# The costs before are read with the calls, or from a temporary table of the calls that changed. Copying a range of
# `call_cost` is cheaper than looking up each call in the whole table.
_AT_CALL = _Before("reprice_cost AS a", "a.at_call")
_CURRENT = _Before(
    "reprice_cost AS a LEFT JOIN reprice_before AS b ON b.id = a.id",
    "CASE WHEN b.id IS NULL THEN a.at_call ELSE b.nano END",
)
_COPY_BEFORE = """
    INSERT INTO reprice_before (id, nano)
    SELECT k.call_id, k.cost_nano
      FROM call_cost AS k
     WHERE k.run = ? AND k.call_id > ? AND k.call_id <= ?
        ON CONFLICT (id) DO NOTHING
"""


def _unpriced_in(dialect: PricingDialect) -> str:
    # Force the index that has only these rows, because SQLite would scan all costs of the range.
    return f"""
        SELECT call_id FROM {dialect.by_index("call_cost", "call_cost_unpriced")}
         WHERE run = ? AND call_id > ? AND call_id <= ? AND cost_nano IS NULL
    """


def _of_base(dialect: PricingDialect, base: int, low: int, high: int) -> _Before:
    return _Before(
        "reprice_cost AS a LEFT JOIN call_cost AS b ON b.run = ? AND b.call_id = a.id",
        "CASE WHEN b.call_id IS NULL THEN a.at_call ELSE b.cost_nano END",
        values=(base, base, low, high),
        only=f"(a.nano IS NULL OR a.at_call IS NULL OR a.id IN ({_unpriced_in(dialect)}))",
    )


def compared(statements: Statements, pricer: Pricer, run_id: int, low: int, high: int) -> list[Group]:
    """The sums of the calls that were priced last.

    The costs before are the current costs. A run with a base compares with the costs at call time, as explained
    above.
    """
    dialect = statements.dialect.pricing
    base = statements.run("SELECT base FROM reprice_run WHERE id = ? AND base IS NOT NULL", (run_id,))
    if base:
        span = (base[0][0], low, high)
        one_sided = _of_base(dialect, *span)
        some = bool(statements.run(f"{_unpriced_in(dialect)} LIMIT 1", span))
        return _grouped(statements, pricer, _AT_CALL, one_sided, look=some)
    runs = current_runs(statements)
    if not runs:
        return _grouped(statements, pricer, _AT_CALL, _AT_CALL)
    statements.run(dialect.emptied("reprice_before"))
    for run in runs:
        statements.run(_COPY_BEFORE, (run, low, high))
    return _grouped(statements, pricer, _CURRENT, _CURRENT)


def _grouped(
    statements: Statements, pricer: Pricer, before: _Before, one_sided: _Before, *, look: bool = False
) -> list[Group]:
    session, also = ("a.session", ", a.session") if pricer.by_session else ("''", "")
    counted = f"count({before.nano}), coalesce(sum({before.nano}), 0)"
    sql = _SUMS.format(source=before.source, before=counted, session=session, also=also)
    groups: dict[tuple[int, str], Group] = {}
    for place, session_id, calls, priced, after, *old in statements.run(sql, before.values):
        priced_at_call, at_call, priced_before, before_nano = old
        provider, model, day = pricer.model_and_day(place)
        groups[place, session_id] = Group(
            provider=provider,
            model=model,
            day=day,
            session=session_id,
            calls=calls,
            unpriced=calls - priced,
            after=after,
            unpriced_at_call=calls - priced_at_call,
            at_call=at_call,
            unpriced_before=calls - priced_before,
            before=before_nano,
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


# --- Other counts of a repricing ---


_MODEL, _DAY, _SESSION = "coalesce(c.model, '')", "c.day + 0", "coalesce(c.session_id, '')"
"""Columns to group by.

The columns are expressions, because SQLite would otherwise scan the index on days with all calls.
"""

_WHICH = {
    "estimated": "c.usage_source = 'estimated'",
    "unknown": f"c.usage_source IS NULL AND {usage_unknown('c')}",
}
"""The condition for each count. Each condition matches an index, because otherwise all calls would be read."""


class _Counts(NamedTuple):
    estimated: int = 0
    unknown: int = 0


class UncountedCalls(NamedTuple):
    """The counts of unknown costs and estimated usage, by model, day and session."""

    by_model: dict[str, _Counts]
    by_day: dict[str, _Counts]
    by_session: dict[str, _Counts]
    in_flight: int
    """The number of calls without an end that may match the filter after their end."""

    @property
    def estimated(self) -> int:
        return sum(counts.estimated for counts in self.by_model.values())

    @property
    def unknown(self) -> int:
        return sum(counts.unknown for counts in self.by_model.values())


def count_uncounted(statements: Statements, where: CallFilter, *, by_session: bool) -> UncountedCalls:
    """Count the calls that are in no sum, before the costs of the run become current."""
    return UncountedCalls(
        _counts(statements, where, _MODEL),
        _counts(statements, where, _DAY),
        _counts(statements, where, _SESSION) if by_session else {},
        _in_flight(statements, where),
    )


def with_counts(report: RepriceReport, uncounted: UncountedCalls) -> RepriceReport:
    """Return the report with the counts of `uncounted`, in total and for each line."""
    none = _Counts()

    def counted(line: msgspec.Struct, counts: _Counts) -> msgspec.Struct:
        return msgspec.structs.replace(line, **counts._asdict())

    return msgspec.structs.replace(
        report,
        estimated=uncounted.estimated,
        unknown=uncounted.unknown,
        in_flight=uncounted.in_flight,
        models=tuple(counted(line, uncounted.by_model.get(line.model, none)) for line in report.models),
        days=tuple(counted(line, uncounted.by_day.get(line.day, none)) for line in report.days),
        sessions=tuple(counted(line, uncounted.by_session.get(line.session_id, none)) for line in report.sessions),
    )


def _counts(statements: Statements, where: CallFilter, column: str) -> dict[str, _Counts]:
    """Return the counts for each value of a column. Values have the names of reports."""
    found: dict[str, _Counts] = {}
    which_calls, values = condition(where, statements.dialect)
    for name, which in _WHICH.items():
        rows = statements.run(
            f"""
            SELECT {column}, count(*)
              FROM calls AS c
             WHERE {which} AND ({which_calls})
             GROUP BY 1
            """,
            values,
        )
        for value, count in rows:
            key = iso_day(value) if column == _DAY else value
            found[key] = found.get(key, _Counts())._replace(**{name: int(count)})
    return found


def _in_flight(statements: Statements, where: CallFilter) -> int:
    """Count calls without an end. A filter's conditions on the end of a call don't apply to them."""
    started = msgspec.structs.replace(
        where, status=None, error_class=None, unpriced=False, unknown=False, min_cost_nano_usd=None
    )
    which, values = condition(started, statements.dialect)
    ((count,),) = statements.run(f"SELECT count(*) FROM calls AS c WHERE c.status = 'started' AND {which}", values)
    return int(count)

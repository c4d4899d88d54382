"""The comparison of the calls that were priced last: their costs before and after, by model, day and session.

The costs before are looked up with the calls. A run of all calls over one other run, its base, needn't look each
of them up. Its sums begin with those that are known of the base (see `tracestore.sql.repricing.sums`), and the run
adds the costs at call time. Only calls that one of the two sides doesn't price are then looked at one by one.
"""

from __future__ import annotations

from typing import NamedTuple

from ..connection import SqlValue, Statements
from .pricing import Pricer
from .pricing_dialect import PricingDialect, TemporaryTable
from .run_costs import current_runs
from .sums import SUMMED, Group

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
    """Make the temporary tables, or empty them."""
    dialect = statements.dialect.pricing
    for table in _TABLES:
        for sql in (*dialect.made(table), dialect.emptied(table.name)):
            statements.run(sql)


class _Before(NamedTuple):
    """The place of the costs before, as SQL."""

    source: str
    """The rows ``a`` that were priced, and the tables that they are joined with."""
    nano: str
    """The cost before, of one call."""
    values: tuple[SqlValue, ...] = ()
    """The parameters of the source and of `only`."""
    only: str = "TRUE"
    """The calls to look at where one side alone prices."""


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
    # By the index that has those only: SQLite would rather walk all costs of the stretch.
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

    The costs before are the current ones. A run with a base compares with the costs at call time, as explained
    above.

    Args:
        statements: The connection.
        pricer: The pricer, which has priced the calls.
        run_id: The number of the run.
        low: The number of the call before the first one.
        high: The number of the last call.
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
    """Group the calls.

    Args:
        statements: The connection.
        pricer: The pricer that priced the calls.
        before: The place of the costs before, for the sums.
        one_sided: The place of the costs before, for calls that one side alone prices.
        look: Whether there may be such calls although the sums don't say so.
    """
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

"""The sums that budgets count: by account, by slot of the window, and by whether the usage is known."""

from __future__ import annotations

from collections.abc import Sequence

from ...rows import Spending, SpendingQuery, SpendingRow
from ..connection import Sql, SqlValue, Statements
from ..repricing.run_costs import current_runs
from .current_costs import cost_under, with_nano
from .dimensions import grouping
from .sums import flag, sum_of, total_input
from .unknown import usage_unknown

_ENDED_BADLY = "('failed', 'cancelled')"


def spending(
    statements: Statements, queries: Sequence[SpendingQuery], run_id: str, *, without: Sequence[str] = ()
) -> Spending:
    """The sums, and how far the trace had come, from one snapshot.

    Args:
        statements: The connection, in a transaction.
        queries: The calls that count.
        run_id: The run that asks. Its calls under way don't count.
        without: Runs of which no call counts.

    Raises:
        ValueError: There is no such dimension.
    """
    ((committed,),) = statements.run(
        "SELECT coalesce((SELECT committed_seq FROM runs WHERE run_id = ?), 0)", (run_id,)
    )
    return Spending([_rows(statements, query, run_id, without) for query in queries], int(committed))


def _rows(statements: Statements, query: SpendingQuery, run_id: str, without: Sequence[str]) -> list[SpendingRow]:
    sql, values = _query(statements, query, run_id, without)
    return [
        SpendingRow(
            value=str(value),
            slot=int(slot),
            unknown=bool(unknown),
            calls=int(calls),
            nano_usd=int(nano),
            tokens=int(tokens),
        )
        for value, slot, unknown, calls, nano, tokens in statements.run(sql, values)
    ]


def _query(statements: Statements, query: SpendingQuery, run_id: str, without: Sequence[str]) -> Sql:
    by: Sequence[str] = () if query.by is None else (query.by,)
    group = grouping(by, "p", statements.dialect)
    conditions = ["NOT (r.run_id = ? AND c.status = 'started')"]
    values: list[SqlValue] = [run_id]
    if without:
        conditions.append(f"r.run_id NOT IN ({', '.join('?' for _ in without)})")
        values += without
    if query.since_us is not None:
        conditions.append("c.ts_us >= ?")
        values.append(query.since_us)
    priced, bound = with_nano(cost_under(current_runs(statements)), " AND ".join(conditions), values)
    value = f"coalesce({group.names[0]}, '')" if group.names else "''"
    unknown = f"({usage_unknown('keyed')} OR {_output_unknown('keyed')} OR {_under_way('keyed')})"
    cost = "keyed.now_nano" if query.current else "keyed.cost_nano"
    used = f"({total_input('keyed')} + keyed.output_tokens)"
    slot = "0" if query.slot_us is None else "(keyed.ts_us - ?) / ?"
    slots: list[SqlValue] = [] if query.slot_us is None else [query.since_us or 0, query.slot_us]
    return (
        f"""
        WITH priced AS ({priced}),
             keyed AS (SELECT p.*{group.columns} FROM priced AS p),
             counted AS (
                 SELECT {value} AS value, {slot} AS slot, {flag(unknown)} AS unknown,
                        CASE WHEN {unknown} THEN coalesce(keyed.reserved_nano, 0)
                             ELSE coalesce({cost}, 0) END AS nano,
                        CASE WHEN {unknown}
                             THEN coalesce(keyed.reserved_tokens, keyed.estimated_input_tokens, 0)
                             ELSE coalesce({used}, 0) END AS tokens
                   FROM keyed
             )
        SELECT value, slot, unknown, count(*), {sum_of("nano")}, {sum_of("tokens")}
          FROM counted
         {"WHERE value = ?" if query.value is not None else ""}
         GROUP BY value, slot, unknown
         ORDER BY value, slot, unknown
        """,
        [*bound, *group.values, *slots, *([] if query.value is None else [query.value])],
    )


def _under_way(row: str) -> str:
    """The condition that a call has created a job whose end isn't stored."""
    return (
        f"({row}.operation = 'video_create' AND {row}.status = 'completed' AND NOT EXISTS"
        " (SELECT 1 FROM calls AS e WHERE e.operation IN ('video_create', 'video') AND e.operation = 'video'"
        f" AND e.provider = {row}.provider AND e.response_id = {row}.response_id)"
        f" OR {row}.operation = 'batch_create' AND {row}.status = 'completed' AND NOT EXISTS"
        f" (SELECT 1 FROM events AS e WHERE e.request_id = {row}.request_id AND e.topic = 'batch.part_ended'))"
    )


def _output_unknown(row: str) -> str:
    """The condition that an attempt failed after it was sent and before anything of a reply was heard."""
    return (
        f"({row}.status IN {_ENDED_BADLY} AND coalesce({row}.usage_source, '') = 'estimated'"
        f" AND coalesce({total_input(row)}, 0) > 0 AND coalesce({row}.output_tokens, 0) = 0)"
    )

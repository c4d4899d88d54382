"""The triggers that keep the sums in step with calls and with the costs of repricings.

A trigger works once for a statement, on all rows that the statement changed. So a batch of thousands of calls
costs little more than one of a few: its rows are added up by day, provider and model before a row of sums is
touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...sql.calls.sums import KEY, REPRICED, SUMMED, added, keys, repriced_summands, summands
from ...sql.repricing.run_costs import RUN_KEY

_SAID_BEFORE = ("day", "provider", "model", "cost_nano", "usage_source")
"""The columns of a call on which the sums of repricings depend."""


def _signed(values: Iterable[str]) -> str:
    """The sums of values that are added or taken off, by the column ``sign`` of the calls ``c``."""
    return ", ".join(f"sum(c.sign * {value})" for value in values)


def _function(name: str, body: str) -> str:
    return f"""
    CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
    BEGIN
        {body}
        RETURN NULL;
    END
    $body$
    """


def _trigger(name: str, when: str, rows: str) -> str:
    """A trigger with a function of the same name, once for each statement."""
    return f"CREATE TRIGGER {name} AFTER {when} REFERENCING {rows} FOR EACH STATEMENT EXECUTE FUNCTION {name}()"


def _without_calls(table: str, key: Sequence[str], rows: str) -> str:
    """Delete the rows of sums that no call is left in, among those of some calls."""
    same = " AND ".join(f"c.{name} = s.{name}" for name in key)
    return f"DELETE FROM {table} AS s WHERE s.calls = 0 AND EXISTS (SELECT 1 FROM {rows} AS c WHERE {same});"


# -- Sums of calls

_IN_SUMS = "c.id <= (SELECT up_to FROM summed_calls)"


def _call_sums_follow(signed_calls: str) -> str:
    changed = added(
        *("call_sums", KEY, SUMMED),
        f"SELECT {keys('c')}, {_signed(summands('c').values())} FROM ({signed_calls}) AS c GROUP BY {keys('c')}",
    )
    return f"""
        IF EXISTS (SELECT 1 FROM was AS c WHERE {_IN_SUMS}) THEN
            {changed};
            {_without_calls("call_sums", KEY, "was")}
        END IF;
    """


_WAS = f"SELECT c.*, -1 AS sign FROM was AS c WHERE {_IN_SUMS}"
_IS = f"SELECT c.*, 1 AS sign FROM is_now AS c WHERE {_IN_SUMS}"

# -- Sums of repricings

_OLD, _NEW = (f"({', '.join(f'{row}.{name}' for name in _SAID_BEFORE)})" for row in ("w", "n"))
_CHANGED = f"""
      FROM was AS w
      JOIN is_now AS n ON n.id = w.id
     WHERE w.usage_source IS NOT NULL AND {_OLD} IS DISTINCT FROM {_NEW}
"""
_CHANGED_CALLS = f"SELECT w.*, -1 AS sign {_CHANGED} UNION ALL SELECT n.*, 1 AS sign {_CHANGED}"
_GONE_COSTS = """
    SELECT w.*, g.run AS of_run, g.cost_nano AS of_cost, -1 AS sign
      FROM gone AS g
      JOIN calls AS w ON w.id = g.call_id
"""


def _repriced_sums_follow(source: str, run: str, cost: str) -> str:
    """Add what calls ``c`` of a source change in the sums of each run that has priced them."""
    return added(
        *("repriced_sums", RUN_KEY, REPRICED),
        f"""
        SELECT {run}, {keys("c")}, {_signed(repriced_summands(cost, "c"))}
          FROM {source}
         GROUP BY {run}, {keys("c")}
        """,
    )


def _runs_to_come_follow(source: str, base: str, cost: str, gone: str = "") -> str:
    """Add the difference of the costs of calls ``c`` for runs that have yet to come to the calls."""
    _, nano, unpriced = repriced_summands(cost, "c")
    return f"""
        INSERT INTO reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
        SELECT r.id, c.model, c.day, '', 0, 0, 0, sum(c.sign * {unpriced}), sum(c.sign * {nano})
          FROM reprice_run AS r
         CROSS JOIN {source}
         WHERE r.finished_us IS NULL AND r.base = {base}
           AND NOT EXISTS (SELECT 1 FROM call_cost AS own WHERE own.run = r.id AND own.call_id = c.id)
           {gone}
         GROUP BY r.id, c.model, c.day
            ON CONFLICT (run, model, day, session) DO UPDATE SET
               unpriced_before = reprice_sum.unpriced_before + excluded.unpriced_before,
               before = reprice_sum.before + excluded.before
    """


_OF_RUNS = (
    f"({_CHANGED_CALLS}) AS c CROSS JOIN reprice_run AS v JOIN call_cost AS k ON k.run = v.id AND k.call_id = c.id"
)
_OF_GONE = f"({_GONE_COSTS}) AS c CROSS JOIN LATERAL (SELECT c.of_cost AS cost_nano) AS k"
_TOO_GONE = "AND NOT EXISTS (SELECT 1 FROM gone AS own WHERE own.run = r.id AND own.call_id = c.id)"
_REPRICED_CALLS_CHANGE = f"""
        IF EXISTS (SELECT 1 FROM reprice_run) AND EXISTS (SELECT 1 {_CHANGED}) THEN
            {_repriced_sums_follow(_OF_RUNS, "k.run", "k")};
            {_without_calls("repriced_sums", KEY, "was")}
            UPDATE reprice_run AS r SET add_up_again = 1
             WHERE r.finished_us IS NULL
               AND EXISTS (SELECT 1 FROM ({_CHANGED_CALLS}) AS c
                             JOIN call_cost AS k ON k.run = r.id AND k.call_id = c.id);
            {_runs_to_come_follow(_OF_RUNS, "k.run", "k")};
        END IF;
"""
_REPRICED_CALLS_GO = f"""
        IF EXISTS (SELECT 1 FROM gone) THEN
            {_repriced_sums_follow(_OF_GONE, "c.of_run", "k")};
            DELETE FROM repriced_sums AS s WHERE s.calls = 0 AND s.run IN (SELECT run FROM gone);
            UPDATE reprice_run AS r SET add_up_again = 1
             WHERE r.finished_us IS NULL AND r.id IN (SELECT run FROM gone);
            {_runs_to_come_follow(_OF_GONE, "c.of_run", "k", _TOO_GONE)};
        END IF;
"""

SUMS = (
    _function("summed_calls_change", _call_sums_follow(f"{_WAS} UNION ALL {_IS}") + _REPRICED_CALLS_CHANGE),
    _trigger("summed_calls_change", "UPDATE ON calls", "OLD TABLE AS was NEW TABLE AS is_now"),
    _function("summed_calls_go", _call_sums_follow(_WAS)),
    _trigger("summed_calls_go", "DELETE ON calls", "OLD TABLE AS was"),
    _function("repriced_calls_go", _REPRICED_CALLS_GO),
    _trigger("repriced_calls_go", "DELETE ON call_cost", "OLD TABLE AS gone"),
)
"""The functions and triggers. They belong to the first step of the schema."""

"""The migration that once gave repricings a base under a price version, as it was released.

`run_costs` has taken it back since: the base of a run is another run.
"""

from __future__ import annotations

from ...sql.calls.sums import repriced_summands


def _of_runs_to_come(of: str, call: str, cost: str, sign: str) -> str:
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

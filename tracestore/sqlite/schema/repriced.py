"""The tables and triggers of repricings, step by step: their bases, their counts, and their costs by run.

A repricing of all calls over one other run, its base, begins with the base's sums as the costs before. Triggers
keep that right if such a call goes, or changes, before its turn.
"""

from __future__ import annotations

from ...sql.calls.sums import REPRICED, added, changes, keys, of_key, repriced_summands, sums
from ...sql.repricing.run_costs import RUN_KEY

_EVERY_RUN = "(SELECT id FROM reprice_run)"
_SAID_BEFORE = (
    "OLD.usage_source IS NOT NULL AND (OLD.day, OLD.provider, OLD.model, OLD.cost_nano, OLD.usage_source)"
)


def _of_runs_to_come(base: str, call: str, cost: str, sign: str) -> str:
    """Add the difference of one call's costs, or take it off, for runs that have yet to come to the call.

    Args:
        base: The column of `call_cost` that a base is named by: a price version at first, and then a run.
        call: The name of the row of `calls`; ``c`` is joined by the statement.
        cost: The name of the row of `call_cost`; ``k`` is joined by the statement.
        sign: Empty, or ``-``.
    """
    _, nano, unpriced = repriced_summands(cost, call)
    joined = (
        f"JOIN calls AS c ON c.id = OLD.call_id WHERE r.base = OLD.{base}"
        if call == "c"
        else f"JOIN call_cost AS k ON k.{base} = r.base AND k.call_id = OLD.id WHERE r.base IS NOT NULL"
    )
    to_come = (
        f"NOT EXISTS (SELECT 1 FROM call_cost AS own WHERE own.run = r.id AND own.call_id = {cost}.call_id)"
        if base == "run"
        else f"{cost}.call_id > r.done AND {cost}.call_id <= r.last_call"
    )
    return f"""
        INSERT INTO reprice_sum (run, model, day, session, calls, unpriced, after, unpriced_before, before)
        SELECT r.id, {call}.model, {call}.day, '', 0, 0, 0, {sign}{unpriced}, {sign}{nano}
          FROM reprice_run AS r
          {joined}
           AND r.finished_us IS NULL AND {to_come}
            ON CONFLICT (run, model, day, session) DO UPDATE SET
               unpriced_before = unpriced_before + excluded.unpriced_before,
               before = before + excluded.before
    """


REPRICE_COUNTS = (
    "ALTER TABLE reprice_run ADD COLUMN estimated INTEGER",
    "ALTER TABLE reprice_run ADD COLUMN unknown INTEGER",
)

REPRICE_BASE = (
    "ALTER TABLE reprice_run ADD COLUMN base TEXT",  # the version; NULL: the run has none
    "CREATE INDEX reprice_run_by_base ON reprice_run (base) WHERE finished_us IS NULL AND base IS NOT NULL",
    f"""
    CREATE TRIGGER call_to_reprice_goes AFTER DELETE ON call_cost
    BEGIN {_of_runs_to_come("price_version", "c", "OLD", "-")}; END
    """,
    f"""
    CREATE TRIGGER call_to_reprice_changes
    AFTER UPDATE OF day, model, usage_source, cost_nano ON calls
    WHEN OLD.usage_source IS NOT NULL
     AND (OLD.day, OLD.model, OLD.usage_source, OLD.cost_nano)
         IS NOT (NEW.day, NEW.model, NEW.usage_source, NEW.cost_nano)
    BEGIN
        {_of_runs_to_come("price_version", "OLD", "k", "-")};
        {_of_runs_to_come("price_version", "NEW", "k", "")};
    END
    """,
)
"""The step that once gave repricings a base under a price version. `RUN_COSTS` has taken it back since."""

# Which runs a version's costs were of was not kept, so they become those of its latest run that finished: what is
# current stays current. A run that never finished has no costs that anyone saw; resumed, it begins anew.
_BY_RUN = (
    *(
        f"DROP TRIGGER {name}"
        for name in (
            *("call_cost_is_append_only", "call_cost_goes_by_pruning", "repriced_call_changes"),
            *("repriced_call_goes", "call_to_reprice_goes", "call_to_reprice_changes"),
        )
    ),
    "DROP INDEX reprice_run_by_base",
    "ALTER TABLE reprice_run DROP COLUMN base",
    "ALTER TABLE reprice_run ADD COLUMN base INTEGER",  # a run; NULL: what calls cost before is looked up
    "ALTER TABLE reprice_run ADD COLUMN finished_no INTEGER",  # the runs in the order in which they finished
    "ALTER TABLE reprice_run ADD COLUMN in_flight INTEGER",  # calls without an end, as it finished
    # Whether a call that an unfinished run had come past has changed or gone since, so that its sums don't hold.
    "ALTER TABLE reprice_run ADD COLUMN add_up_again INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX reprice_run_by_base ON reprice_run (base) WHERE finished_us IS NULL AND base IS NOT NULL",
    "CREATE INDEX reprice_run_by_finish ON reprice_run (finished_us)",
    """
    UPDATE reprice_run SET finished_us = started_us
     WHERE id IN (SELECT max(r.id) FROM reprice_run AS r JOIN current_version USING (version)
                   GROUP BY r.version HAVING max(r.finished_us) IS NULL)
    """,
    "UPDATE reprice_run SET finished_no = id WHERE finished_us IS NOT NULL",
    """
    CREATE TABLE run_of_version AS
    SELECT version, max(id) AS run FROM reprice_run WHERE finished_us IS NOT NULL GROUP BY version
    """,
    """
    UPDATE reprice_run
       SET replaced = (SELECT json_group_array(run)
                         FROM (SELECT o.run
                                 FROM json_each(reprice_run.replaced) AS j
                                 JOIN run_of_version AS o ON o.version = j.value
                                ORDER BY j.key))
     WHERE replaced IS NOT NULL
    """,
    "UPDATE reprice_run SET done = 0, replaced = '[]' WHERE finished_us IS NULL",
    "DELETE FROM reprice_sum WHERE run IN (SELECT id FROM reprice_run WHERE finished_us IS NULL)",
    "CREATE TABLE current_run (position INTEGER PRIMARY KEY, run INTEGER NOT NULL UNIQUE) STRICT",
    """
    INSERT INTO current_run (position, run)
    SELECT position, o.run FROM current_version JOIN run_of_version AS o USING (version)
    """,
    "DROP TABLE current_version",
    "ALTER TABLE call_cost RENAME TO cost_by_version",
    """
    CREATE TABLE call_cost (
        run        INTEGER NOT NULL,
        call_id    INTEGER NOT NULL,
        cost_nano  INTEGER,
        reason     TEXT,
        PRIMARY KEY (run, call_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    INSERT INTO call_cost (run, call_id, cost_nano, reason)
    SELECT o.run, k.call_id, k.cost_nano, k.reason
      FROM cost_by_version AS k
      JOIN run_of_version AS o ON o.version = k.price_version
     ORDER BY o.run, k.call_id
    """,
    "DROP TABLE cost_by_version",
    "DROP TABLE run_of_version",
    "CREATE INDEX call_cost_unpriced ON call_cost (run, call_id) WHERE cost_nano IS NULL",
)

_SUMS_BY_RUN = (
    "DROP TABLE repriced_sums",
    f"""
    CREATE TABLE repriced_sums (
        run       INTEGER NOT NULL,
        day       INTEGER NOT NULL,
        provider  TEXT NOT NULL,
        model     TEXT NOT NULL,
        {", ".join(f"{name} INTEGER NOT NULL" for name in REPRICED)},
        PRIMARY KEY (run, day, provider, model)
    ) WITHOUT ROWID
    """,
    added(
        *("repriced_sums", RUN_KEY, REPRICED),
        f"""
        SELECT k.run, {keys("c")}, {sums(repriced_summands("k", "c"))}
          FROM call_cost AS k
          JOIN calls AS c ON c.id = k.call_id
         GROUP BY k.run, {keys("c")}
        """,
    ),
    *(
        # Of the calls with a cost: those that had none before, and the other way round.
        f"ALTER TABLE reprice_sum ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
        for name in ("newly_priced", "newly_priced_nano", "no_longer_priced", "no_longer_priced_nano")
    ),
)

_TRIGGERS = (
    """
    CREATE TRIGGER call_cost_is_append_only BEFORE UPDATE ON call_cost
    BEGIN SELECT RAISE(ABORT, 'costs are append-only'); END
    """,
    """
    CREATE TRIGGER call_cost_goes_by_pruning BEFORE DELETE ON call_cost
    WHEN NOT EXISTS (SELECT 1 FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'costs are append-only'); END
    """,
    f"""
    CREATE TRIGGER repriced_call_changes
    AFTER UPDATE OF day, provider, model, usage_source, cost_nano ON calls
    WHEN {_SAID_BEFORE} IS NOT (NEW.day, NEW.provider, NEW.model, NEW.cost_nano, NEW.usage_source)
    BEGIN
        UPDATE repriced_sums SET {changes("repriced_sums", REPRICED, repriced_summands("k", "OLD"), "-")}
          FROM call_cost AS k
         WHERE k.run = repriced_sums.run AND k.call_id = OLD.id
           AND ({keys("repriced_sums")}) = ({keys("OLD")});
        {
        added(
            *("repriced_sums", RUN_KEY, REPRICED),
            f"SELECT k.run, {keys('NEW')}, {', '.join(repriced_summands('k', 'NEW'))}"
            f"  FROM call_cost AS k WHERE k.run IN {_EVERY_RUN} AND k.call_id = NEW.id",
        )
    };
        DELETE FROM repriced_sums WHERE {of_key("OLD")} AND calls = 0;
        UPDATE reprice_run SET add_up_again = 1
         WHERE finished_us IS NULL
           AND EXISTS (SELECT 1 FROM call_cost AS k WHERE k.run = reprice_run.id AND k.call_id = OLD.id);
    END
    """,
    f"""
    CREATE TRIGGER repriced_call_goes AFTER DELETE ON call_cost
    BEGIN
        UPDATE repriced_sums SET {changes("repriced_sums", REPRICED, repriced_summands("OLD", "c"), "-")}
          FROM calls AS c
         WHERE c.id = OLD.call_id AND repriced_sums.run = OLD.run
           AND ({keys("repriced_sums")}) = ({keys("c")});
        DELETE FROM repriced_sums WHERE run = OLD.run AND calls = 0;
        UPDATE reprice_run SET add_up_again = 1 WHERE id = OLD.run AND finished_us IS NULL;
    END
    """,
    f"""
    CREATE TRIGGER call_to_reprice_goes AFTER DELETE ON call_cost
    BEGIN {_of_runs_to_come("run", "c", "OLD", "-")}; END
    """,
    f"""
    CREATE TRIGGER call_to_reprice_changes
    AFTER UPDATE OF day, model, usage_source, cost_nano ON calls
    WHEN OLD.usage_source IS NOT NULL
     AND (OLD.day, OLD.model, OLD.usage_source, OLD.cost_nano)
         IS NOT (NEW.day, NEW.model, NEW.usage_source, NEW.cost_nano)
    BEGIN
        {_of_runs_to_come("run", "OLD", "k", "-")};
        {_of_runs_to_come("run", "NEW", "k", "")};
    END
    """,
)

RUN_COSTS = (*_BY_RUN, *_SUMS_BY_RUN, *_TRIGGERS)
"""The tables, filled with what a file has already, and the triggers that keep the sums in step."""

"""The triggers that let only a pruning delete events and costs.

A pruning says how far it goes in the table `pruning`, in its transaction, and has emptied it again when it
commits. Retention also drops partitions of whole months, which is left to the owner of the tables.
"""

from __future__ import annotations


def _refusal(name: str, condition: str, said: str) -> str:
    return f"""
    CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
    BEGIN
        IF {condition} THEN
            RAISE EXCEPTION '{said}';
        END IF;
        RETURN NULL;
    END
    $body$
    """


APPEND_ONLY = (
    _refusal(
        "events_go_by_pruning",
        "EXISTS (SELECT 1 FROM gone WHERE ts_us >= coalesce((SELECT before_us FROM pruning), ts_us))",
        "events are append-only",
    ),
    """
    CREATE TRIGGER events_go_by_pruning AFTER DELETE ON events REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION events_go_by_pruning()
    """,
    _refusal("call_cost_goes_by_pruning", "NOT EXISTS (SELECT 1 FROM pruning)", "costs are append-only"),
    """
    CREATE TRIGGER call_cost_goes_by_pruning BEFORE DELETE ON call_cost
    FOR EACH STATEMENT EXECUTE FUNCTION call_cost_goes_by_pruning()
    """,
)
"""The functions and triggers. They belong to the first step of the schema."""

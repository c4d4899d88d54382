"""What SQL says of leases, and of the rows that go when sessions do."""

from __future__ import annotations

SECONDS_LEFT = """
    extract(epoch FROM greatest(lease_until, pg_postmaster_start_time() + make_interval(secs => lease_seconds))
                       - clock_timestamp())
"""
"""The seconds until the end of a node's lease."""

WITH_SESSIONS = (
    "DELETE FROM turn_endings WHERE session_id IN ({names})",
    """
    DELETE FROM session_owners WHERE session_id IN (
        SELECT session_id FROM session_owners AS o
         WHERE session_id IN ({names})
           AND (released = 1 OR NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node = o.node))
           FOR UPDATE SKIP LOCKED)
    """,
    f"""
    DELETE FROM session_owners WHERE session_id IN (
        SELECT o.session_id FROM session_owners AS o JOIN nodes AS n ON n.node = o.node
         WHERE o.session_id IN ({{names}}) AND {SECONDS_LEFT} < 0
           FOR UPDATE SKIP LOCKED)
    """,
)
"""Statements that delete what the cluster knows of sessions, but for those that a living node has. They wait for
nobody: whose row is locked is being used."""

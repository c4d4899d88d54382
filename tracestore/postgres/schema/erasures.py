"""The tables of what was deleted on purpose, and of how far retention has gone: no shipper brings it back."""

from __future__ import annotations

ERASURES = (
    """
    CREATE TABLE erasures (
        key         text COLLATE "C" PRIMARY KEY,
        at_us       bigint NOT NULL,
        origin      text COLLATE "C",             -- the trace file where it was deleted; NULL: here
        number      bigint,                       -- in that file
        event       bigint NOT NULL,
        session_id  text COLLATE "C",             -- the session that was deleted, or
        before_us   bigint,                       -- the moment before which content was
        runs        text COLLATE "C" NOT NULL,    -- those that said something in the session, as JSON
        swept       bigint NOT NULL DEFAULT 1     -- 0: bodies that nobody needs may be there still
    )
    """,
    "CREATE INDEX erasures_by_session ON erasures (session_id)",
    "CREATE INDEX erasures_by_origin ON erasures (origin, number)",
    "ALTER TABLE shipping ADD COLUMN erasure bigint NOT NULL DEFAULT 0",  # the last one of the file that is done
    "CREATE TABLE pruned (id bigint PRIMARY KEY CHECK (id = 1), before_us bigint NOT NULL)",
)
"""One step."""

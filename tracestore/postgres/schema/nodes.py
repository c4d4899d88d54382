"""The tables of the nodes of a cluster: who lives, whose a session is, and turns whose owner died."""

from __future__ import annotations

NODES = (
    """
    CREATE TABLE nodes (
        node          text COLLATE "C" PRIMARY KEY,  -- the run of its engine
        cluster       text COLLATE "C" NOT NULL,
        name          text COLLATE "C" NOT NULL,     -- for people
        lease         bigint NOT NULL,               -- its number: it rises when one is over before it is renewed
        lease_seconds double precision NOT NULL,
        lease_until   timestamptz NOT NULL
    )
    """,
    """
    CREATE TABLE session_owners (
        session_id text COLLATE "C" PRIMARY KEY,
        node       text COLLATE "C" NOT NULL,
        epoch      bigint NOT NULL,                  -- it only rises
        released   bigint NOT NULL DEFAULT 0,
        taken_at   timestamptz NOT NULL,
        wanted_at  timestamptz                       -- when another node last asked for it
    )
    """,
    "CREATE INDEX session_owners_node ON session_owners (node) WHERE released = 0",
    """
    CREATE TABLE turn_endings (
        stream_id  text COLLATE "C" PRIMARY KEY,
        session_id text COLLATE "C" NOT NULL,
        epoch      bigint NOT NULL,
        status     text COLLATE "C" NOT NULL,
        decided_by text COLLATE "C" NOT NULL,
        decided_at timestamptz NOT NULL
    )
    """,
    "ALTER TABLE session_setups ADD COLUMN epoch bigint NOT NULL DEFAULT 0",
    "ALTER TABLE session_messages ADD COLUMN epoch bigint NOT NULL DEFAULT 0",
)
"""One step."""

CLAIMS = (
    "CREATE SEQUENCE session_epochs",
    "SELECT setval('session_epochs', (SELECT coalesce(max(epoch), 0) + 1 FROM session_owners), FALSE)",
    "CREATE INDEX turn_endings_session ON turn_endings (session_id)",
)
"""One step. All claims get their epochs from one sequence, so a session that is claimed after its row was deleted
has a higher one than ever before."""

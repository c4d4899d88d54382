"""The table of the files that traces are shipped from."""

from __future__ import annotations

SHIPPING = (
    """
    CREATE TABLE shipping (
        origin      text COLLATE "C" PRIMARY KEY,  -- of a trace file, see tracestore.shipping.marks
        event       bigint NOT NULL,               -- the number in that file of the last event that came,
        run_id      text COLLATE "C" NOT NULL,     -- and which event that was
        seq         bigint NOT NULL,
        host        text COLLATE "C",
        file        text COLLATE "C",
        shipped_at  timestamptz NOT NULL
    )
    """,
)
"""One step."""

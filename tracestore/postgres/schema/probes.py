"""The table of leases for probes, see `tracestore.nodes.probes`."""

from __future__ import annotations

PROBES = (
    """
    CREATE TABLE provider_probes (
        cluster     text COLLATE "C" NOT NULL,
        provider    text COLLATE "C" NOT NULL,
        model       text COLLATE "C" NOT NULL,  -- empty for the provider as a whole
        node        text COLLATE "C" NOT NULL,
        lease_until timestamptz NOT NULL,
        PRIMARY KEY (cluster, provider, model)
    )
    """,
)
"""One step."""

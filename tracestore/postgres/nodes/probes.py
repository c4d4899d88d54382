"""`tracestore.nodes.probes.ProbeTables` in PostgreSQL. The time is the database's."""

from __future__ import annotations

from ...sql.connection import Statements
from .database import SharedDatabase

_TAKE = """
    INSERT INTO provider_probes (cluster, provider, model, node, lease_until)
    VALUES (?, ?, ?, ?, clock_timestamp() + make_interval(secs => ?))
    ON CONFLICT (cluster, provider, model) DO UPDATE
       SET node = excluded.node, lease_until = excluded.lease_until
     WHERE provider_probes.node = excluded.node OR provider_probes.lease_until <= clock_timestamp()
    RETURNING node
"""
_LEFT = """
    SELECT extract(epoch FROM lease_until - clock_timestamp())
      FROM provider_probes WHERE cluster = ? AND provider = ? AND model = ?
"""
_RELEASE = "DELETE FROM provider_probes WHERE cluster = ? AND provider = ? AND model = ? AND node = ?"

_LEAST_SECONDS = 0.05
"""The time that is told of a lease which is about to end."""


class PostgresProbes:
    """The rows of one cluster in one database.

    Args:
        database: The database.
        cluster: The cluster's name.
    """

    def __init__(self, database: SharedDatabase, cluster: str) -> None:
        self._database = database
        self._cluster = cluster

    async def take(self, node: str, provider: str, model: str, seconds: float) -> float:
        def work(statements: Statements) -> float:
            if statements.run(_TAKE, (self._cluster, provider, model, node, seconds)):
                return 0.0
            found = statements.run(_LEFT, (self._cluster, provider, model))
            return max(_LEAST_SECONDS, float(str(found[0][0]))) if found else _LEAST_SECONDS

        return await self._database.brief(work)

    async def release(self, node: str, provider: str, model: str) -> None:
        await self._database.statement(_RELEASE, (self._cluster, provider, model, node))

"""The expressions that PostgreSQL writes in its own way."""

from __future__ import annotations

from ..sql.connection import SqlValue
from .nodes.leases import WITH_SESSIONS
from .repricing.dialect import PostgresPricing


class PostgresDialect:
    """PostgreSQL's answers to `tracestore.sql.connection.Dialect`."""

    pricing = PostgresPricing()
    moment = "CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text)"
    untouched_since = "age(xmin) > age(CAST(CAST(CAST(? AS text) AS xid8) AS xid))"
    # All transactions before that number had ended then. `age` counts from the latest one back.

    latest_claim: str | None = "SELECT epoch FROM session_owners WHERE session_id = ? FOR SHARE"
    with_sessions: tuple[str, ...] = WITH_SESSIONS

    def tag(self, tags: str) -> str:
        """The value of one tag; NULL if there is none."""
        return f'(CAST({tags} AS json) ->> CAST(? AS text)) COLLATE "C"'

    def behind(self, text: str, sign: str) -> str:
        """The part of a text behind the first `sign` in it."""
        return f"substr({text}, strpos({text}, '{sign}') + 1)"

    def like_topic(self, column: str, pattern: str) -> tuple[str, SqlValue]:
        """Whether a topic matches a pattern with ``*``."""
        literal = pattern.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        return f"{column} LIKE ?", literal.replace("*", "%")

    def by_number(self, table: str, name: str) -> str:
        """A table, in whatever order the planner reads it."""
        return f"{table} AS {name}"

    def rounded(self, value: str, digits: int) -> str:
        """A number with so many decimal places."""
        return f"CAST(round(CAST({value} AS numeric), {digits}) AS double precision)"


POSTGRES = PostgresDialect()

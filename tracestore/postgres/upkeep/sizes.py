"""The size of a trace on the server's disk."""

from __future__ import annotations

from ...sql.connection import Statements


def size_of(statements: Statements) -> int:
    """The bytes of all tables of the schema, with their indexes."""
    ((size,),) = statements.run(
        """
        SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
         WHERE relkind = 'r' AND relnamespace = CAST(current_schema() AS regnamespace)
        """
    )
    return int(size)

"""The expressions that SQLite writes in its own way."""

from __future__ import annotations

from ..sql.connection import SqlValue


class SqliteDialect:
    """SQLite's answers to `tracestore.sql.connection.Dialect`."""

    def tag(self, tags: str) -> str:
        """By key, not by path: a tag may be called anything."""
        return f"(SELECT t.value FROM json_each({tags}) AS t WHERE t.key = ?)"

    def behind(self, text: str, sign: str) -> str:
        """The part of a text behind the first `sign` in it."""
        return f"substr({text}, instr({text}, '{sign}') + 1)"

    def like_topic(self, column: str, pattern: str) -> tuple[str, SqlValue]:
        """Whether a topic matches a pattern with ``*``."""
        return f"{column} GLOB ?", pattern

    def by_number(self, table: str, name: str) -> str:
        """A table to be read in the order of its ids."""
        return f"{table} AS {name} NOT INDEXED"

    def rounded(self, value: str, digits: int) -> str:
        """A number with so many decimal places."""
        return f"round({value}, {digits})"


SQLITE = SqliteDialect()

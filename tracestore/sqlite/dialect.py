"""The expressions that SQLite writes in its own way."""

from __future__ import annotations

from ..prices.rows import MAX_INT64
from ..prices.table import MOST_PICO
from ..sql.connection import SqlValue
from ..sql.repricing.pricing_dialect import TemporaryTable

_NEAR_64_BITS = 9.1e18
"""A limit near the end of 64 bits, where sum() fails. Where total() exceeds it, sum() is not asked."""


class SqlitePricing:
    """SQLite's answers to `tracestore.sql.repricing.pricing_dialect.PricingDialect`.

    An integer product that leaves 64 bits becomes a REAL in SQLite. It is larger, and typeof() gives it away.
    """

    unknown_rate = MAX_INT64
    priced_below = MOST_PICO // 1000
    row = "rowid"
    value = "d.value"

    def made(self, table: TemporaryTable) -> tuple[str, ...]:
        """Statements that make a temporary table. Without a key it has no types either: they cost time."""
        name, columns, key = table
        types = {column: "INTEGER" if of == "RATE" else of for column, of in columns.items()} if key else {}
        listed = [f"{column} {types.get(column, '')}" for column in columns]
        if key:
            listed.append(f"PRIMARY KEY ({', '.join(key)})")
        kind = "WITHOUT ROWID" if len(key) > 1 else ""
        return (f"CREATE TEMP TABLE IF NOT EXISTS {name} ({', '.join(listed)}) {kind}",)

    def emptied(self, table: str) -> str:
        """A statement that deletes all rows of a temporary table."""
        return f"DELETE FROM temp.{table}"

    def surveyed(self, table: str) -> tuple[str, ...]:
        """None: there is one way to the rows."""
        return ()

    def same(self, one: str, other: str) -> str:
        """Whether two values are equal, or both NULL."""
        return f"{one} IS {other}"

    def by_index(self, table: str, index: str) -> str:
        """A table to be read through an index."""
        return f"{table} INDEXED BY {index}"

    def plain_nano(self, pico: str) -> str:
        """The nano-USD of a sum of products with rates."""
        return self.nano(pico)

    def exact(self, count: str) -> str:
        """A count as it is."""
        return count

    def is_integer(self, number: str) -> str:
        """Whether no product left 64 bits."""
        return f"typeof({number}) = 'integer'"

    def nano(self, pico: str) -> str:
        """The nano-USD of pico-USD, rounded."""
        return f"({pico} + 500) / 1000"

    def sum_of(self, products: str) -> str:
        """The sum of products over some rows."""
        return f"CASE WHEN total({products}) > {_NEAR_64_BITS} THEN 1e20 ELSE coalesce(sum({products}), 0) END"

    def part(self, details: str, name: str) -> str:
        """The count of one name in a column of details."""
        return f"json_extract({details}, '$.{name}')"

    def each(self, details: str) -> str:
        """The counts in a column of details."""
        return f"json_each({details}) AS d"


class SqliteDialect:
    """SQLite's answers to `tracestore.sql.connection.Dialect`."""

    pricing = SqlitePricing()
    moment = "''"
    untouched_since = "? IS NOT NULL"  # whatever is written since has a later time: it is this machine's
    latest_claim: str | None = None
    with_sessions: tuple[str, ...] = ()

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

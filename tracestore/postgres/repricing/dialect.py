"""PostgreSQL's SQL for pricing many calls at once."""

from __future__ import annotations

from ...sql.repricing.pricing_dialect import TemporaryTable

_TYPES = {"INTEGER": "bigint", "TEXT": 'text COLLATE "C"', "RATE": "double precision"}

_EXACT = 1 << 53
"""The pico-USD up to which sums and products in double precision are exact: 9,007 USD a call."""


class PostgresPricing:
    """PostgreSQL's answers to `tracestore.sql.repricing.pricing_dialect.PricingDialect`.

    An integer product that leaves 64 bits is an error in PostgreSQL. So nearly all calls are priced in double
    precision, which is exact up to a bound, and the few dear or peculiar ones in numeric.
    """

    unknown_rate = 1e17
    priced_below = _EXACT // 1000
    row = "id"
    value = "d.value"

    def made(self, table: TemporaryTable) -> tuple[str, ...]:
        """Statements that make a temporary table, unless it is there."""
        listed = [f"{column} {_TYPES[of]}" for column, of in table.columns.items()]
        if table.key:
            listed.append(f"PRIMARY KEY ({', '.join(table.key)})")
        return (f"CREATE TEMPORARY TABLE IF NOT EXISTS {table.name} ({', '.join(listed)})",)

    def emptied(self, table: str) -> str:
        """A statement that deletes all rows of a temporary table. DELETE would leave them to be walked over."""
        return f"TRUNCATE pg_temp.{table}"

    def surveyed(self, table: str) -> tuple[str, ...]:
        """A statement that looks at the rows, which nothing else does with a temporary table."""
        return (f"ANALYZE pg_temp.{table}",)

    def same(self, one: str, other: str) -> str:
        """Whether two values are equal, or both NULL."""
        return f"{one} IS NOT DISTINCT FROM {other}"

    def by_index(self, table: str, index: str) -> str:
        """A table, through whatever index the planner takes."""
        return table

    def plain_nano(self, pico: str) -> str:
        """The nano-USD of a sum of products with rates. NULL becomes the greatest number that there can be."""
        return f"CAST(least({pico} + 500, CAST(9.1e18 AS double precision)) AS bigint) / 1000"

    def exact(self, count: str) -> str:
        """A count as a number without bounds."""
        return f"CAST({count} AS numeric)"

    def is_integer(self, number: str) -> str:
        """Every numeric product of integers is exact."""
        return "TRUE"

    def nano(self, pico: str) -> str:
        """The nano-USD of pico-USD, rounded."""
        return f"CAST(div({pico} + 500, 1000) AS bigint)"

    def sum_of(self, products: str) -> str:
        """The sum of products over some rows."""
        return f"coalesce(sum({products}), 0)"

    def part(self, details: str, name: str) -> str:
        """The count of one name in a column of details."""
        return f"CAST(CAST({details} AS json) ->> '{name}' AS numeric)"

    def each(self, details: str) -> str:
        """The counts in a column of details."""
        return (
            'LATERAL (SELECT j.key COLLATE "C" AS key, CAST(j.value AS numeric) AS value'
            f" FROM json_each_text(CAST({details} AS json)) AS j) AS d"
        )

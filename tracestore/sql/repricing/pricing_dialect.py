"""The parts of pricing that databases write differently: temporary tables, and numbers near the end of 64 bits."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypeAlias

ColumnType: TypeAlias = Literal["INTEGER", "TEXT", "RATE"]
"""The type of a column. INTEGER has 64 bits. RATE is what `PLAIN` multiplies with."""


class TemporaryTable(NamedTuple):
    """A table that belongs to one connection."""

    name: str
    """The name of the table. No other table of the database has it."""
    columns: dict[str, ColumnType]
    """The columns, each of which can be NULL unless it is of the key."""
    key: tuple[str, ...] = ()
    """The columns of the primary key; empty where rows are only appended, and walked."""


class PricingDialect(Protocol):
    """One database's SQL for pricing."""

    @property
    def unknown_rate(self) -> int | float:
        """The number in place of an unknown rate. The cost of one such token is beyond `priced_below`."""
        ...

    @property
    def priced_below(self) -> int:
        """The nano-USD below which the cost that `PLAIN` gave is exact."""
        ...

    @property
    def row(self) -> str:
        """The column by which a row of `reprice_cost` is found the quickest."""
        ...

    def made(self, table: TemporaryTable) -> tuple[str, ...]:
        """Statements that make a temporary table, unless it is there."""
        ...

    def emptied(self, table: str) -> str:
        """A statement that deletes all rows of a temporary table."""
        ...

    def surveyed(self, table: str) -> tuple[str, ...]:
        """Statements that let the database know what a temporary table holds now, before it plans on it."""
        ...

    def same(self, one: str, other: str) -> str:
        """Whether two values are equal, or both NULL."""
        ...

    def by_index(self, table: str, index: str) -> str:
        """A table to be read through an index."""
        ...

    def plain_nano(self, pico: str) -> str:
        """The nano-USD of a sum of products with rates, rounded; not below `priced_below` if it isn't exact."""
        ...

    def exact(self, count: str) -> str:
        """A count in a type whose products with rates don't fail."""
        ...

    def is_integer(self, number: str) -> str:
        """Whether a number that came of such products is exact."""
        ...

    def nano(self, pico: str) -> str:
        """The nano-USD of exact pico-USD, rounded."""
        ...

    def sum_of(self, products: str) -> str:
        """The sum of products over some rows, beyond all costs if it left 64 bits."""
        ...

    def part(self, details: str, name: str) -> str:
        """The count of one name in a column of details; NULL if there is none."""
        ...

    def each(self, details: str) -> str:
        """The counts in a column of details, as the rows ``d``, whose column ``key`` is the name."""
        ...

    @property
    def value(self) -> str:
        """The count of a row ``d``."""
        ...

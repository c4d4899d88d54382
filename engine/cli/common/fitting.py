"""A table for terminals of any width. If there is no room for all columns, the least important ones are left out.

A table in too little room has words of one letter a line. A table that is wider than its terminal is broken in the
middle of numbers. So columns are left out, in an order that the command gives, and a line below names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from .harmless import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

FOLDED_WIDTH = 24  # of a column that may fold: as narrow as names can be and still be read

_GAP = 2


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    heading: str
    """The text above it."""
    footer: str
    """The text below it."""
    right: bool
    """Whether it is aligned to the right."""
    folds: bool
    """Whether it may be broken over several lines."""
    may_go: int
    """0 for a column that always stays. Of the others, the one with the greatest number goes first."""


class FittingTable:
    """A table that is filled like rich's own.

    Args:
        footer: Whether there is a line of sums below.
    """

    def __init__(self, *, footer: bool = False) -> None:
        self._footer = footer
        self._columns: list[Column] = []
        self._rows: list[tuple[str, ...]] = []

    def add_column(
        self,
        heading: str,
        footer: str = "",
        *,
        justify: Literal["left", "right"] = "left",
        folds: bool = False,
        may_go: int = 0,
    ) -> None:
        self._columns.append(Column(one_line(heading), one_line(footer), justify == "right", folds, may_go))

    def add_row(self, *cells: str | Sequence[str]) -> None:
        """Add a row. A cell is one line, or several lines."""
        self._rows.append(tuple(_cell(cell) for cell in cells))

    def shown_in(self, width: int) -> list[int]:
        """The places of the columns for which there is room."""
        wanted = [self._wanted(place) for place in range(len(self._columns))]
        chosen = list(range(len(wanted)))
        while sum(wanted[place] for place in chosen) + _GAP * (len(chosen) - 1) > width:
            first = max(chosen, key=lambda place: self._columns[place].may_go)
            if not self._columns[first].may_go:
                break
            chosen.remove(first)
        return chosen

    def _wanted(self, place: int) -> int:
        from rich.cells import cell_len

        column = self._columns[place]
        texts = (column.heading, column.footer if self._footer else "", *(row[place] for row in self._rows))
        widest = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
        return min(widest, FOLDED_WIDTH) if column.folds else widest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        chosen = self.shown_in(options.max_width)
        yield self._drawn(chosen)
        left_out = [column.heading for place, column in enumerate(self._columns) if place not in chosen]
        if any(left_out):
            yield Text(f"(no room for: {', '.join(filter(None, left_out))})", style="dim")

    def _drawn(self, chosen: Sequence[int]) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.SIMPLE if self._footer else box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_footer=self._footer,
            pad_edge=False,
            show_edge=False,
            header_style="dim",
            footer_style="bold",
        )
        for place in chosen:
            column = self._columns[place]
            table.add_column(
                column.heading,
                column.footer,
                justify="right" if column.right else "left",
                overflow="fold" if column.folds else "ellipsis",
                no_wrap=not column.folds,
            )
        for row in self._rows:
            table.add_row(*(row[place] for place in chosen))
        return table


def _cell(said: str | Sequence[str]) -> str:
    return one_line(said) if isinstance(said, str) else "\n".join(map(one_line, said))

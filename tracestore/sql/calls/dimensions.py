"""The dimensions by which sums and statistics of calls can be grouped, as SQL and as text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...calls import DIMENSIONS
from ...timestamps import iso_day
from ..connection import Dialect, SqlValue

_TAG = "tag:"


class Grouping(msgspec.Struct, frozen=True):
    """Dimensions as SQL."""

    by: tuple[str, ...]
    """The dimensions as they were asked for."""
    columns: str
    """The columns, each with a comma before it, to follow something else."""
    names: tuple[str, ...]
    """The names of these columns, to group by."""
    values: tuple[SqlValue, ...]
    """The parameters of `columns`. They come where `columns` stands, and nowhere else."""

    def key(self, row: Sequence[object]) -> tuple[str, ...]:
        """The first values of a row as text, one for each dimension. NULL is an empty text."""
        return tuple(_text(name, value) for name, value in zip(self.by, row, strict=False))

    def listed(self, after: str = "") -> str:
        """The names, with commas between them, and `after` at the end if there are any."""
        return ", ".join(self.names) + (after if self.names else "")


def grouping(by: Sequence[str], row: str, dialect: Dialect) -> Grouping:
    """Dimensions of the calls that a statement calls `row`. Raises ValueError for one that does not exist."""
    columns, values = [], []
    for number, name in enumerate(by):
        if name.startswith(_TAG) and len(name) > len(_TAG):
            columns.append(f"{dialect.tag(f'{row}.tags')} AS g{number}")
            values.append(name.removeprefix(_TAG))
        elif name == "operation":  # NULL is what earlier versions wrote
            columns.append(f"coalesce({row}.operation, 'chat') AS g{number}")
        elif name in DIMENSIONS:
            columns.append(f"{row}.{name} AS g{number}")
        else:
            raise ValueError(f"calls can be grouped by {', '.join(DIMENSIONS)} or tag:KEY, not by {name!r}")
    names = tuple(f"g{number}" for number in range(len(columns)))
    return Grouping(tuple(by), "".join(f", {column}" for column in columns), names, tuple(values))


def _text(name: str, value: object) -> str:
    if name == "day" and isinstance(value, int):
        return iso_day(value)
    return "" if value is None else str(value)

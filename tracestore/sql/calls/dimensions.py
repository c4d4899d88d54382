"""What sums and statistics of calls can be grouped by, as SQL and as text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...sqlite.insert import SqlValue
from ...timestamps import iso_day

DIMENSIONS = (
    *("day", "provider", "model", "session_id", "turn_id", "status"),
    *("served_model", "error_class", "stop_reason", "operation"),
)
"""Columns of a call. ``tag:KEY`` is one more: the value of that tag."""

_TAG = "tag:"


class Grouping(msgspec.Struct, frozen=True):
    """Dimensions as SQL. columns: ``, a, b``, to follow something else; names: what to group by; values: theirs.

    The parameters of `columns` come where `columns` stands, and nowhere else.
    """

    by: tuple[str, ...]
    columns: str
    names: tuple[str, ...]
    values: tuple[SqlValue, ...]

    def key(self, row: Sequence[object]) -> tuple[str, ...]:
        """The first values of a row, one for each dimension, as text; what a call doesn't have is empty."""
        return tuple(_text(name, value) for name, value in zip(self.by, row, strict=False))

    def listed(self, after: str = "") -> str:
        """The names, with commas between them, and `after` at the end if there are any."""
        return ", ".join(self.names) + (after if self.names else "")


def grouping(by: Sequence[str], row: str) -> Grouping:
    """Dimensions of the calls that the SQL calls `row`. Raises ValueError for one that there isn't."""
    columns, values = [], []
    for number, name in enumerate(by):
        if name.startswith(_TAG) and len(name) > len(_TAG):
            # By key, not by path: a tag may be called anything.
            columns.append(f"(SELECT t.value FROM json_each({row}.tags) AS t WHERE t.key = ?) AS g{number}")
            values.append(name.removeprefix(_TAG))
        elif name == "operation":  # which earlier versions didn't know
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

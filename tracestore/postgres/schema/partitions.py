"""The partitions of events: one for each month (UTC) of their moments, made before the first event of it.

A month is made beside the table and attached, which waits for no reader. Whoever writes needs no right to do that:
a function does it that belongs to the owner of the tables. Moments before the year 2000 and after 2099, which are
those of clocks that are wrong, have a partition on either side. There is no DEFAULT partition, because making a
month would have to look through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from ...sql.connection import Statements
from ...timestamps import to_us

FIRST_US = to_us(datetime(2000, 1, 1, tzinfo=UTC))
END_US = to_us(datetime(2100, 1, 1, tzinfo=UTC))


def month_of(ts_us: int) -> tuple[int, int, str] | None:
    """The month of a moment: its begin, its end, and the name of its partition; None if it has none of its own."""
    if not FIRST_US <= ts_us < END_US:
        return None
    moment = datetime.fromtimestamp(ts_us // 1_000_000, UTC)
    begin = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    end = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    return to_us(begin), to_us(end), f"events_{moment:%Y%m}"


def month_named(name: str) -> tuple[int, int] | None:
    """The begin and the end of the month of a partition; None if it isn't a month's."""
    digits = name.removeprefix("events_")
    if len(digits) != len("YYYYMM") or not digits.isdecimal():
        return None
    month = month_of(to_us(datetime(int(digits[:4]), int(digits[4:]), 1, tzinfo=UTC)))
    return None if month is None else month[:2]


def ensure_months(statements: Statements, moments_us: Iterable[int]) -> None:
    """Make the partitions that events of these moments go into. Call it in the transaction that writes them.

    Args:
        statements: The connection, in a transaction of `Database.write`.
        moments_us: The moments; the least and the greatest of each month are enough.
    """
    wanted = {month for month in map(month_of, moments_us) if month is not None}
    if not wanted:
        return
    attached = {
        name
        for (name,) in statements.run(
            """
            SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = CAST('events' AS regclass)
            """
        )
    }
    for first_us, end_us, name in sorted(wanted):
        if name not in attached:
            statements.run(
                "SELECT callboard_make_month(CAST(? AS bigint), CAST(? AS bigint), CAST(? AS text))",
                (first_us, end_us, name),
            )

"""Counts the spending of the trace in a ledger: of earlier runs, other processes, and new prices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from callboard.tracestore.rows import SpendingQuery, SpendingRow
from callboard.tracestore.store import Store

from .budget import Budget
from .ledger import Amount, Ledger

Load: TypeAlias = Callable[[Sequence[Budget], int], Awaitable["Counted"]]
"""Asks the trace what counts in some budgets at a moment."""

_DIMENSIONS = {"engine": None, "session": "session_id"}
"""The dimensions of the trace that have another name than the scope."""


class Counted(msgspec.Struct, frozen=True):
    """The sums of some budgets in the trace, all read at one moment."""

    entries: list[tuple[Budget, SpendingRow, int]]
    """The sums; of each its budget, and a moment in its slot, in microseconds since the Unix epoch."""
    committed_seq: int = 0
    """The number of the last event of this run that the sums include."""

    def count_in(self, ledger: Ledger) -> None:
        for budget, row, at_us in self.entries:
            amount = Amount(row.nano_usd, row.tokens)
            ledger.account(budget, row.value).book(amount, at_us, calls=row.calls, unknown=row.unknown)


def loader(store: Store | None, run_id: str, settle: Callable[[], Awaitable[object]]) -> Load:
    """A function that asks the trace."""

    async def load(budgets: Sequence[Budget], now_us: int) -> Counted:
        if store is None:
            return Counted([])
        await settle()
        queries = [query_of(budget, now_us) for budget in budgets]
        spending = await store.spending(queries, run_id)
        entries = [
            (budget, row, now_us if query.slot_us is None else (query.since_us or 0) + row.slot * query.slot_us)
            for budget, query, rows in zip(budgets, queries, spending.rows, strict=True)
            for row in rows
        ]
        return Counted(entries, spending.committed_seq)

    return load


def query_of(budget: Budget, now_us: int) -> SpendingQuery:
    """The calls that count in a budget at a moment."""
    window = budget.counted_over
    slot = window.slot(now_us)
    since_us: int | None = slot.start_us
    slot_us: int | None = None
    if window.rolling is not None:
        slot_us = slot.end_us - slot.start_us
        since_us = window.slot(now_us - window.rolling_us).start_us
    elif window.calendar is None:
        since_us = None
    return SpendingQuery(
        by=_DIMENSIONS.get(budget.per, budget.per),
        value=budget.of,
        since_us=since_us,
        slot_us=slot_us,
        current=budget.follows_repricing,
    )

"""An account of a budget as the shared rows know it, see `tracestore.nodes.AccountScope`."""

from __future__ import annotations

import msgspec

from callboard.tracestore.nodes import Slot
from callboard.tracestore.rows import SpendingQuery

from ...budgets.budget import Budget
from ...budgets.from_trace import query_of
from ...budgets.windows import Slot as WindowSlot


class Scope:
    """The account of one value under one budget. Pure.

    Args:
        budget: The budget.
        value: The session, provider, model or value of a tag; empty for the account of all.
    """

    def __init__(self, budget: Budget, value: str) -> None:
        self.budget = name_of(budget)
        self.value = value
        self.limits = (budget.max_nano_usd, budget.max_tokens)
        self._budget = budget
        self._window = budget.counted_over

    def slot(self, now_us: int) -> Slot:
        """The slot that a moment belongs to."""
        return self._as_shared(self._window.slot(now_us))

    def query(self, now_us: int) -> SpendingQuery:
        """The calls of the trace that count at a moment."""
        only = None if self._budget.per == "engine" else self.value
        return msgspec.structs.replace(query_of(self._budget, now_us), value=only)

    def counted_slot(self, query: SpendingQuery, number: int, now_us: int) -> Slot:
        """The slot behind the number that an answer to `query` has."""
        return self.slot(now_us if query.slot_us is None else (query.since_us or 0) + number * query.slot_us)

    def _as_shared(self, slot: WindowSlot) -> Slot:
        return Slot(slot.start_us, self._window.forgets_us(slot))


def name_of(budget: Budget) -> str:
    """A budget in the same words on every node, and in other words than any budget that counts otherwise."""
    scope = budget.per if budget.of is None else f"{budget.per}={budget.of}"
    limits = f"{budget.max_nano_usd} nano-USD, {budget.max_tokens} tokens"
    follows = ", current prices" if budget.follows_repricing else ""
    return f"{scope}; {limits}; {budget.window} {budget.zone}{follows}"

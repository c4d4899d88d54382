"""Money before the call: what may be spent, what is reserved, and who waits for it."""

from __future__ import annotations

from .budget import Budget
from .ledger import AccountState, Amount, BudgetExceededError

__all__ = ["AccountState", "Amount", "Budget", "BudgetExceededError"]

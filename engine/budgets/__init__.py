"""Money before the call: what may be spent, what is reserved, and who waits for it."""

from __future__ import annotations

from .budget import Budget
from .budgets import BudgetExceededError
from .ledger import AccountState, Amount

__all__ = ["AccountState", "Amount", "Budget", "BudgetExceededError"]

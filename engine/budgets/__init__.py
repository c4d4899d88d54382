"""Money before the call: what may be spent, what is reserved, and who waits for it."""

from __future__ import annotations

from .account import AccountState, Amount
from .budget import Budget
from .exceeded import BudgetExceededError

__all__ = ["AccountState", "Amount", "Budget", "BudgetExceededError"]

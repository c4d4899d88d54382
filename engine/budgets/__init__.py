"""Budgets: spending limits, reservations before each call, and calls that wait for room."""

from __future__ import annotations

from .budget import Budget
from .ledger import AccountState, Amount, BudgetExceededError

__all__ = ["AccountState", "Amount", "Budget", "BudgetExceededError"]

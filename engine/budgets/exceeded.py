"""The error of a call that did not fit into a budget."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from callboard.bus import CallboardError
from callboard.bus.values.usage import usd_of

from .account import Refusal
from .budget import Budget


class BudgetExceededError(CallboardError):
    """A call did not fit into a budget. It was not made, and costs nothing."""

    def __init__(self, refusal: Refusal) -> None:
        self.budget: Budget = refusal.budget
        """The budget that has no room."""
        self.scope: str = f"{refusal.budget.per} {refusal.value}".strip()
        """The scope whose account is full, such as ``tag:tenant acme``."""
        self.left_usd: Decimal | None = None if self.budget.max_nano_usd is None else usd_of(refusal.left.money)
        """The money that is left in the account, in US dollars; None without a limit on money."""
        self.left_tokens: int | None = None if self.budget.max_tokens is None else refusal.left.tokens
        """The tokens that are left in the account; None without a limit on tokens."""
        self.asked_usd: Decimal | None = None if refusal.asked.nano_usd is None else usd_of(refusal.asked.nano_usd)
        """The most that the call can cost, in US dollars; None if nobody knows."""
        self.asked_tokens: int = refusal.asked.tokens
        """The most tokens that the call can use."""
        self.fits_at: datetime | None = _moment(refusal.fits_at_us)
        """The time, UTC, at which the window alone makes room; None if it never does."""
        super().__init__(_text(self, refusal))


def _moment(at_us: int | None) -> datetime | None:
    return None if at_us is None else datetime.fromtimestamp(at_us / 1e6, UTC)


def _text(error: BudgetExceededError, refusal: Refusal) -> str:
    budget = f"the budget of {refusal.budget.describe(refusal.value)}"
    if refusal.why == "unpriced":
        return (
            f"{budget} can't see this call: nobody knows the most that it can cost; add a price for its model, "
            'give max_output_tokens, or allow such calls with unpriced="allow"'
        )
    if refusal.why == "money":
        left, asked = f"{max(refusal.left.money, 0) / 1e9:.6g} USD", f"{refusal.asked.money / 1e9:.6g} USD"
    else:
        left, asked = f"{max(refusal.left.tokens, 0)} tokens", f"{refusal.asked.tokens} tokens"
    when = f"; there is room at {error.fits_at:%Y-%m-%d %H:%M:%S} UTC" if error.fits_at is not None else ""
    return f"{budget} has {left} left, and the call may need {asked}{when}; lower max_output_tokens, or raise it"

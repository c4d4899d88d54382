"""What budgets tell: room that is reserved, what a call did cost, refusals, and accounts that are nearly empty."""

from __future__ import annotations

from typing import Literal

from .envelope import Event


class BudgetReserved(Event, frozen=True, kw_only=True, tag="budget.reserved"):
    """The most that an attempt can cost is reserved in every account that looks at it."""

    nano_usd: int | None
    """The money in nano-USD; None if nobody knows it, and the budgets allow that."""
    tokens: int
    """The input and output tokens."""


class BudgetSettled(Event, frozen=True, kw_only=True, tag="budget.settled"):
    """An attempt has ended. Its cost counts in place of its reservation."""

    nano_usd: int | None
    """The cost in nano-USD; None if it has no price."""
    tokens: int
    """The input and output tokens."""
    unknown: bool = False
    """Whether nobody knows what the attempt used, so that it counts at what it had reserved."""


class BudgetRefused(Event, frozen=True, kw_only=True, tag="budget.refused"):
    """A call did not fit into a budget, and was not made."""

    scope: str
    """The kind of account that had no room: ``engine``, ``session``, ``provider``, ``model`` or ``tag:NAME``."""
    value: str
    """The session, provider, model or value of the tag whose account it is; empty for the engine's."""
    why: Literal["money", "tokens", "unpriced"]
    """The limit that was in the way; ``unpriced`` if nobody knows the most that the call can cost."""
    asked_nano_usd: int | None
    """The most that the call can cost, in nano-USD; None if nobody knows."""
    asked_tokens: int
    """The most tokens that the call can use."""
    left_nano_usd: int | None
    """The money that was left in the account, in nano-USD."""
    left_tokens: int
    """The tokens that were left in the account."""
    fits_at_us: int | None = None
    """The time at which the window alone makes room, in microseconds since the Unix epoch; None for never."""


class BudgetLow(Event, frozen=True, kw_only=True, tag="budget.low"):
    """What is spent of an account has passed the mark of its budget, for the first time in the window."""

    scope: str
    """The kind of account: ``engine``, ``session``, ``provider``, ``model`` or ``tag:NAME``."""
    value: str
    """The session, provider, model or value of the tag whose account it is; empty for the engine's."""
    left_nano_usd: int | None
    """The money that is left, in nano-USD; None without a limit on money."""
    left_tokens: int | None
    """The tokens that are left; None without a limit on tokens."""

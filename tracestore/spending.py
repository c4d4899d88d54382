"""What budgets ask the trace: the sums that calls cost, by whose account they are and by when they were made."""

from __future__ import annotations

import msgspec


class SpendingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls count, and how they are grouped."""

    by: str | None = None
    """The dimension whose values have accounts of their own: ``session_id``, ``provider``, ``model`` or
    ``tag:KEY``. None is one account for all."""
    value: str | None = None
    """The only value that is wanted; None is every value."""
    since_us: int | None = None
    """The first moment that counts, in microseconds since the epoch; None is the beginning."""
    slot_us: int | None = None
    """The length of a slot in microseconds. Slots are counted from `since_us`. None is one slot."""
    current: bool = False
    """Whether the current costs count, and not those at call time."""


class SpendingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one account in one slot."""

    value: str
    """The value of the dimension; empty for calls that have none."""
    slot: int
    """The number of the slot, from 0."""
    unknown: bool
    """Whether these are the calls of unknown usage. They count at what was reserved for them."""
    calls: int
    """The number of attempts."""
    nano_usd: int
    """The sum of their costs in nano-USD, as far as the costs are known."""
    tokens: int
    """The sum of their input and output tokens."""


class Spending(msgspec.Struct, frozen=True):
    """The answer to several queries, all of one moment."""

    rows: list[list[SpendingRow]]
    """The sums, a list for each query."""
    committed_seq: int
    """The number of the last event of the asking run that the sums include."""

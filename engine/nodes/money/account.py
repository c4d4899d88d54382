"""An account of which this node may spend what it has been granted, see `tracestore.nodes`.

    room at this node   what is granted in the slot of now  -  what is held, spent and unknown there
    room in all         the limit  -  what the trace and other nodes have  -  what counts at this node

A reservation needs both. Whoever only asks whether a call would fit, to choose a model or the length of a reply,
is told of the room in all, as far as it was known when the store was asked last.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from callboard.tracestore.nodes import Allotment, Slot, Standing

from ...budgets.account import Account, AccountState, Amount, Refusal
from ...budgets.budget import Budget
from ...budgets.windows import ENDLESS_US
from .scope import Scope

_NOTHING: Allotment = (0, 0)


class SharedAccount(Account):
    """One account of a budget that all nodes share."""

    def __init__(self, budget: Budget, value: str) -> None:
        super().__init__(budget, value)
        self.scope = Scope(budget, value)
        self.granted: dict[Slot, Allotment] = {}
        """The node's slices."""
        self.asked_us = -ENDLESS_US
        """The time of the last reservation, in microseconds since the epoch."""
        self.recently: Allotment = _NOTHING
        """What was reserved since the last look at what lies idle."""
        self._spent = self._others = _NOTHING

    # -- What is known of the shared rows

    def stands(self, standing: Standing) -> None:
        """Take in how the account stands."""
        self.granted[standing.slot] = standing.granted
        self._spent, self._others = standing.spent, standing.others

    def used(self, slot: Slot) -> Allotment:
        """What counts at this node in a slot."""
        found = self._slots.get(slot.start_us)
        return _NOTHING if found is None else (found.money, found.tokens)

    def short_of(self, asked: Amount, now_us: int) -> Allotment | None:
        """The size that the slice of now must have for a reservation; None if it has it."""
        slot = self.scope.slot(now_us)
        used, has = self.used(slot), self.granted.get(slot, _NOTHING)
        needs = (used[0] + asked.money, used[1] + asked.tokens)
        limited = [limit is not None for limit in self.scope.limits]
        fits = all(need <= size for need, size, counts in zip(needs, has, limited, strict=True) if counts)
        return None if fits else needs

    def idle(self, now_us: int, idle_us: int, *, wanted: bool) -> list[tuple[Slot, Allotment]]:
        """The slices that are larger than they need to be, with the sizes that they need.

        A slice in which something was reserved a moment ago may be larger, unless somebody else lacks it. What was
        granted in slots that are over isn't needed any more.
        """
        current = self.scope.slot(now_us)
        found = []
        for slot, size in list(self.granted.items()):
            if slot.forgotten_us <= now_us:
                del self.granted[slot]
                continue
            used = self.used(slot)
            in_use = slot == current and not wanted and now_us - self.asked_us < idle_us
            if not in_use and (size[0] > used[0] or size[1] > used[1]):
                found.append((slot, (min(size[0], used[0]), min(size[1], used[1]))))
        return found

    # -- As an account

    def refuses(self, asked: Amount, now_us: int) -> Refusal | None:
        """Why an amount has no room at this node; None if it has."""
        refusal = self.would_refuse(asked, now_us)
        if refusal is None and self.short_of(asked, now_us) is not None:
            return self._refusal("money" if self._max_money is not None else "tokens", asked, now_us)
        return refusal

    def would_refuse(self, asked: Amount, now_us: int) -> Refusal | None:
        """Why an amount has no room in all; None if it has, for all that is known."""
        refusal = super().refuses(_with(_with(asked, self._spent), self._others), now_us)
        return None if refusal is None else self._refusal(refusal.why, asked, now_us)

    def may_come(self, asked: Amount, now_us: int) -> bool:
        """Whether an amount would have room if other nodes gave back all that they have."""
        return super().refuses(_with(asked, self._spent), now_us) is None

    def add_asked(self, asked: Amount, now_us: int) -> None:
        """Note a reservation, so that the next slice is as large as will be needed."""
        self.asked_us = now_us
        self.recently = (self.recently[0] + asked.money, self.recently[1] + asked.tokens)

    def _is_low(self, money: int, tokens: int) -> bool:
        spent, others = self._spent, self._others
        return super()._is_low(money + spent[0] + others[0], tokens + spent[1] + others[1])

    def state(self, now_us: int) -> AccountState:
        """The account as a value: with what the trace has, and what other nodes hold or have spent."""
        own = super().state(now_us)
        return msgspec.structs.replace(
            own, spent=_plus(own.spent, self._spent), held=_plus(own.held, self._others)
        )

    def _fits_at_us(self, why: Literal["money", "tokens"], asked: Amount, now_us: int) -> int | None:
        """The end of the slot: nobody here knows when the others' slots leave the window."""
        limit = self._max_money if why == "money" else self._max_tokens
        need = asked.money if why == "money" else asked.tokens
        end = self._window.slot(now_us).end_us
        return end if limit is not None and need <= limit and end < ENDLESS_US else None


def _plus(amount: Amount, more: Allotment) -> Amount:
    return Amount(amount.money + more[0], amount.tokens + more[1])


def _with(asked: Amount, more: Allotment) -> Amount:
    """An amount and what is spent elsewhere; without a price it has none."""
    return Amount(None if asked.nano_usd is None else asked.money + more[0], asked.tokens + more[1])

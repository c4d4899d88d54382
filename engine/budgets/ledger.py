"""The spent and reserved amounts of each account of each budget. Pure: no I/O and no clock.

A reservation is in exactly one state:

    (none) ── reserve ──► held ── settle ──► spent
                           │
                           └──── lose ─────► unknown ── settle ──► spent

In the states `held` and `unknown`, a call counts with its maximum cost. In `spent`, it counts with its actual
cost. A call counts in the slot of its reservation, even if it ends later. The trace also counts each call at its
start, so the accounts agree with its sums. A reservation takes room in all accounts of the call or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

import msgspec

from callboard.bus import CallboardError
from callboard.bus.log import warn_of_old_name
from callboard.bus.values.usage import usd_of

from .budget import ENDLESS_US, OF_TREES, Budget, Payer, Slot

# --- One account of a budget ---


class Amount(msgspec.Struct, frozen=True, gc=False):
    """An amount of money and of tokens."""

    nano_usd: int | None = 0
    """The money in nano-USD; None if no price is known."""
    tokens: int = 0
    """The input and output tokens."""

    @property
    def money(self) -> int:
        """The money in nano-USD; 0 if it is unknown."""
        return self.nano_usd or 0

    @property
    def usd(self) -> Decimal | None:
        """The money in USD, exactly, or None if no price is known."""
        return None if self.nano_usd is None else usd_of(self.nano_usd)


class Refusal(msgspec.Struct, frozen=True):
    """An account that has no room for a reservation."""

    budget: Budget
    value: str
    """The session, provider, model or tag value of the account; empty for the engine's account."""
    why: Literal["money", "tokens", "unpriced"]
    left: Amount
    amount: Amount
    fits_at_us: int | None
    """The time at which the window has room for the call, in microseconds since the Unix epoch; None for
    never."""
    held: Amount
    """The maximum amount that calls in progress can release when they end."""

    @property
    def may_fit(self) -> bool:
        """Whether waiting can help: the call fits into the account at some time."""
        if self.fits_at_us is not None or self.why == "unpriced":
            return self.fits_at_us is not None
        if self.why == "money":
            return self.amount.money - self.left.money <= self.held.money
        return self.amount.tokens - self.left.tokens <= self.held.tokens


class AccountState(msgspec.Struct, frozen=True):
    """One account at one moment."""

    budget: Budget
    scope: str
    """The session, provider, model or tag value that the account belongs to. Empty for the engine's account."""
    spent: Amount
    """The known cost and tokens of calls that have ended."""
    held: Amount
    """The most that calls in progress can still cost."""
    unknown: Amount
    """The most that calls with unknown usage can have cost."""
    calls: int
    """The number of calls that are counted, including calls in progress."""
    unknown_calls: int
    """The number of calls with unknown usage."""
    window_ends_us: int | None
    """The end of the current slot, in microseconds since the Unix epoch; None without a window."""

    @property
    def value(self) -> str:
        """Deprecated name of `scope`."""
        warn_of_old_name("AccountState.value is deprecated: use AccountState.scope")
        return self.scope

    @property
    def left_usd(self) -> Decimal | None:
        """The money that is neither spent nor held, exactly, in USD. None without a limit on money."""
        return None if self.left_nano_usd is None else usd_of(self.left_nano_usd)

    @property
    def left_nano_usd(self) -> int | None:
        """The money that is neither spent nor held, in nano-USD; None without a limit on money."""
        limit = self.budget.max_nano_usd
        return None if limit is None else limit - self.spent.money - self.held.money - self.unknown.money

    @property
    def left_tokens(self) -> int | None:
        """The tokens that are neither used nor held; None without a limit on tokens."""
        limit = self.budget.max_tokens
        return None if limit is None else limit - self.spent.tokens - self.held.tokens - self.unknown.tokens


class Tally:
    __slots__ = ("calls", "money", "tokens")

    def __init__(self) -> None:
        self.calls = 0
        self.money = 0
        self.tokens = 0

    def add(self, amount: Amount, sign: int = 1, calls: int = 1) -> None:
        self.calls += sign * calls
        self.money += sign * (amount.nano_usd or 0)
        self.tokens += sign * amount.tokens


class SlotSum:
    __slots__ = ("forgotten_us", "held", "slot", "spent", "unknown")

    def __init__(self, slot: Slot, forgotten_us: int) -> None:
        self.slot = slot
        self.forgotten_us = forgotten_us
        self.held, self.spent, self.unknown = Tally(), Tally(), Tally()

    @property
    def money(self) -> int:
        return self.held.money + self.spent.money + self.unknown.money

    @property
    def tokens(self) -> int:
        return self.held.tokens + self.spent.tokens + self.unknown.tokens


class Account:
    """The account of one scope under one budget: the engine, or a session, provider, model or tag value.

    The account keeps totals over all current slots, so the work for a call does not depend on the number of slots.
    The totals are added up again when a slot starts or leaves the window.
    """

    def __init__(self, budget: Budget, value: str) -> None:
        self.budget = budget
        self.value = value
        self._max_money = budget.max_nano_usd
        self._max_tokens = budget.max_tokens
        self._window = budget.counted_over
        self._slots: dict[int, SlotSum] = {}
        self._current = self.slot_of(0)
        self._low_until_us = -ENDLESS_US
        self._money = self._tokens = 0
        self._valid_from_us = self._valid_to_us = 0  # the period in which the totals are valid

    def slot_at(self, moment_us: int) -> SlotSum:
        """The sums of the slot at a given time."""
        slot = self._current.slot
        if not slot.start_us <= moment_us < slot.end_us:
            self._current = self.slot_of(moment_us)
        return self._current

    def slot_of(self, moment_us: int) -> SlotSum:
        """The sums of the slot at any time, past or future."""
        slot = self._window.slot(moment_us)
        found = self._slots.get(slot.start_us)
        if found is None:
            found = self._slots[slot.start_us] = SlotSum(slot, self._window.forgets_us(slot))
            self._valid_to_us = 0
        return found

    def add(self, found: SlotSum, tally: Tally, amount: Amount, sign: int = 1, calls: int = 1) -> None:
        """Add an amount to a part of a slot, or subtract it with `sign` -1."""
        tally.add(amount, sign, calls)
        if found.slot.start_us < self._valid_to_us and found.forgotten_us > self._valid_from_us:
            self._money += sign * (amount.nano_usd or 0)
            self._tokens += sign * amount.tokens

    def counted(self, now_us: int) -> list[SlotSum]:
        """The slots that count at a given time. Expired slots are dropped.

        A rolling window also counts slots in the future. They exist if the clock was set back.
        """
        for start, found in list(self._slots.items()):
            if found.forgotten_us <= now_us:
                del self._slots[start]
        rolling = self._window.rolling is not None
        return [found for found in self._slots.values() if rolling or found.slot.start_us <= now_us]

    def _add_up(self, now_us: int) -> None:
        current = self.slot_at(now_us)
        slots = self.counted(now_us)
        self._money, self._tokens = sum(found.money for found in slots), sum(found.tokens for found in slots)
        self._valid_from_us = now_us
        self._valid_to_us = min([current.slot.end_us, *(found.forgotten_us for found in slots)])
        self._slots.setdefault(current.slot.start_us, current)

    def refuses(self, amount: Amount, now_us: int) -> Refusal | None:
        """The reason why an amount has no room in the account; None if it fits."""
        if not self._valid_from_us <= now_us < self._valid_to_us:
            self._add_up(now_us)
        if self._max_money is not None:
            if amount.nano_usd is None and self.budget.unpriced == "refuse":
                return self._refusal("unpriced", amount, now_us)
            if self._money + (amount.nano_usd or 0) > self._max_money:
                return self._refusal("money", amount, now_us)
        if self._max_tokens is not None and self._tokens + amount.tokens > self._max_tokens:
            return self._refusal("tokens", amount, now_us)
        return None

    async def secure(self, amount: Amount, now_us: int) -> bool:
        """If the account's turn runs on another node, request more room from that node. Return whether the room
        was granted.
        """
        return False

    def would_refuse(self, amount: Amount, now_us: int) -> Refusal | None:
        """Like `refuses`, without side effects."""
        return self.refuses(amount, now_us)

    def _refusal(self, why: Literal["money", "tokens", "unpriced"], amount: Amount, now_us: int) -> Refusal:
        state = self.state(now_us)
        available = Amount(state.left_nano_usd or 0, state.left_tokens or 0)
        fits_at = None if why == "unpriced" else self._fits_at_us(why, amount, now_us)
        return Refusal(self.budget, self.value, why, available, amount, fits_at, state.held)

    def _fits_at_us(self, why: Literal["money", "tokens"], amount: Amount, now_us: int) -> int | None:
        """The time at which the amount fits if nothing else is spent, because old slots leave the window."""
        limit = self._max_money if why == "money" else self._max_tokens
        need = amount.money if why == "money" else amount.tokens
        assert limit is not None
        if need > limit:
            return None
        counted = sum(found.money if why == "money" else found.tokens for found in self.counted(now_us))
        for found in sorted(self.counted(now_us), key=lambda found: found.forgotten_us):
            counted -= found.money if why == "money" else found.tokens
            if counted + need <= limit:
                return found.forgotten_us if found.forgotten_us < ENDLESS_US else None
        return None

    def is_newly_low(self, now_us: int) -> bool:
        """Whether spending has passed `low_at` for the first time in this slot of the window."""
        if now_us < self._low_until_us or not self._is_low(self._money, self._tokens):
            return False
        slots = self.counted(now_us)
        money = sum(found.spent.money + found.unknown.money for found in slots)
        tokens = sum(found.spent.tokens + found.unknown.tokens for found in slots)
        low = self._is_low(money, tokens)
        if low:
            self._low_until_us = self._window.slot(now_us).end_us
        return low

    def _is_low(self, money: int, tokens: int) -> bool:
        mark = self.budget.low_at
        return (self._max_money is not None and money >= mark * self._max_money) or (
            self._max_tokens is not None and tokens >= mark * self._max_tokens
        )

    def book(self, amount: Amount, at_us: int, *, calls: int = 1, unknown: bool = False) -> None:
        """Count calls that ended outside this ledger, such as those of an earlier process."""
        found = self.slot_of(at_us)
        self.add(found, found.unknown if unknown else found.spent, amount, calls=calls)

    def clear_ended(self) -> None:
        """Drop the ended calls, and keep the reservations."""
        for found in self._slots.values():
            found.spent, found.unknown = Tally(), Tally()
        self._valid_to_us = 0

    def state(self, now_us: int) -> AccountState:
        slots = self.counted(now_us)
        held, spent, unknown = ([getattr(found, part) for found in slots] for part in ("held", "spent", "unknown"))
        end = self._window.slot(now_us).end_us
        return AccountState(
            self.budget,
            self.value,
            _sum_of(spent),
            _sum_of(held),
            _sum_of(unknown),
            sum(tally.calls for tally in (*held, *spent, *unknown)),
            sum(tally.calls for tally in unknown),
            end if end < ENDLESS_US else None,
        )


def _sum_of(tallies: Sequence[Tally]) -> Amount:
    return Amount(sum(tally.money for tally in tallies), sum(tally.tokens for tally in tallies))


class _Hold(msgspec.Struct):
    amount: Amount
    payer: Payer | None
    at_us: int
    places: list[tuple[Account, SlotSum]]
    lost: bool = False


class Ledger:
    """All accounts of all budgets, and the reservations in them."""

    def __init__(
        self, budgets: Sequence[Budget], make_account: Callable[[Budget, str], Account] = Account
    ) -> None:
        self._make_account = make_account
        self._budgets: dict[int, Budget] = {}
        """The budgets by their numbers. The number of a removed budget is not reused."""
        self._next_number = 0
        self._accounts: dict[tuple[int, str], Account] = {}
        self._holds: dict[str, _Hold] = {}
        self.add(budgets)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The active budgets, in the order in which they were added."""
        return tuple(self._budgets.values())

    def add(self, budgets: Sequence[Budget]) -> None:
        """Activate more budgets. Reservations in progress are counted in them."""
        fresh = range(self._next_number, self._next_number + len(budgets))
        self._budgets.update(zip(fresh, budgets, strict=True))
        self._next_number = fresh.stop
        self._index()
        for hold in self._holds.values():
            if hold.lost or hold.payer is None:  # a lost call has ended and is in the trace
                continue
            for number in fresh:
                value = self._budgets[number].value_for(hold.payer)
                if value is not None:
                    account = self._account(number, value)
                    found = account.slot_of(hold.at_us)
                    account.add(found, found.held, hold.amount)
                    hold.places.append((account, found))

    def remove(self, budgets: Collection[Budget]) -> None:
        """Remove budgets with their accounts. Calls with reservations in these accounts can still be settled."""
        gone = {number for number, budget in self._budgets.items() if budget in budgets}
        for number in gone:
            del self._budgets[number]
        for place in [place for place in self._accounts if place[0] in gone]:
            del self._accounts[place]
        self._index()

    def _index(self) -> None:
        self._each = [number for number, budget in self._budgets.items() if budget.of is None]
        self._one: dict[tuple[str, str], list[int]] = {}
        for number, budget in self._budgets.items():
            if budget.of is not None:
                self._one.setdefault((budget.per, budget.of), []).append(number)
        self._kinds = tuple({per for per, _ in self._one})
        self._of_trees = [number for number, budget in self._budgets.items() if budget.per in OF_TREES]

    def accounts(self, payer: Payer) -> list[Account]:
        """The accounts of a call. The time for this grows with the number of accounts, not with the number of
        budgets.
        """
        found = [self._account(number, payer.value(self._budgets[number].per)) for number in self._each]
        for kind in self._kinds:
            value = payer.value(kind)
            found += [self._account(number, value) for number in self._one.get((kind, value), ())]
        return found + list(payer.accounts) if payer.accounts else found

    def _account(self, number: int, value: str) -> Account:
        account = self._accounts.get((number, value))
        if account is None:
            account = self._accounts[number, value] = self._make_account(self._budgets[number], value)
        return account

    def would_refuse(self, payer: Payer, amount: Amount, now_us: int) -> list[Refusal]:
        """The refusals that a reservation would get; empty if it would be admitted."""
        refusals = (account.would_refuse(amount, now_us) for account in self.accounts(payer))
        return [refusal for refusal in refusals if refusal is not None]

    def reserve(self, hold_id: str, payer: Payer, amount: Amount, now_us: int) -> list[Refusal]:
        """Take room in all accounts of a call, or in none. Returns the refusals if there is no room."""
        return self.reserve_in(self.accounts(payer), hold_id, amount, now_us, payer)

    def reserve_in(
        self, accounts: Sequence[Account], hold_id: str, amount: Amount, now_us: int, payer: Payer | None = None
    ) -> list[Refusal]:
        """Take room in all of these accounts, or in none. Returns the refusals if there is no room.

        A reservation without a payer is not counted in budgets that are added later.
        """
        if hold_id in self._holds:
            raise ValueError(f"a reservation {hold_id!r} already exists")
        refusals = [refusal for account in accounts if (refusal := account.refuses(amount, now_us)) is not None]
        if refusals:
            return refusals
        places = [(account, account.slot_at(now_us)) for account in accounts]
        for account, found in places:
            account.add(found, found.held, amount)
        self._holds[hold_id] = _Hold(amount, payer, now_us, places)
        return []

    def settle(self, hold_id: str, spent: Amount | None, counted: Collection[Budget] = ()) -> list[Account]:
        """Replace a call's reservation with its cost. Returns the call's accounts; empty if the call has no
        reservation.

        A lost call may be settled later, when its usage is known.
        """
        hold = self._holds.pop(hold_id, None)
        if hold is None:
            return []
        for account, found in hold.places:
            account.add(found, found.unknown if hold.lost else found.held, hold.amount, -1)
            if spent is not None and account.budget not in counted:
                account.add(found, found.spent, spent)
        return [account for account, _ in hold.places]

    def lose(self, hold_id: str, counted: Collection[Budget] = ()) -> list[Account]:
        """Count a call at its reserved amount, because its usage is unknown. Returns the call's accounts."""
        hold = self._holds.get(hold_id)
        if hold is None or hold.lost:
            return []
        hold.lost = True
        for account, found in hold.places:
            account.add(found, found.held, hold.amount, -1)
            if account.budget not in counted:
                account.add(found, found.unknown, hold.amount)
        return [account for account, _ in hold.places]

    def __contains__(self, hold_id: str) -> bool:
        return hold_id in self._holds

    def rename(self, hold_id: str, new_id: str) -> None:
        if hold_id in self._holds:
            self._holds[new_id] = self._holds.pop(hold_id)

    def release(self, hold_id: str) -> list[Account]:
        """Release the reservation of a call that was never sent. Returns its accounts."""
        return self.settle(hold_id, None)

    def account(self, budget: Budget, value: str) -> Account:
        return self._account(self._number_of(budget), value)

    def accounts_of(self, budget: Budget) -> list[Account]:
        number = self._number_of(budget)
        return [account for (of_budget, _), account in self._accounts.items() if of_budget == number]

    def _number_of(self, budget: Budget) -> int:
        return next(number for number, each in self._budgets.items() if each == budget)

    def forget_turn(self, turn_id: str) -> None:
        """Drop the accounts of a turn that has ended. Calls with reservations in them can still be settled."""
        for number in self._of_trees:
            self._accounts.pop((number, turn_id), None)

    def states(self, now_us: int) -> Iterator[AccountState]:
        """All accounts, in the order of the budgets and of their first use."""
        for key in sorted(self._accounts, key=lambda key: key[0]):
            yield self._accounts[key].state(now_us)

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(name for name, hold in self._holds.items() if not hold.lost)

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(name for name, hold in self._holds.items() if hold.lost)


class BudgetExceededError(CallboardError):
    """A call did not fit into a budget. It was not made, and costs nothing."""

    def __init__(self, refusal: Refusal) -> None:
        self.budget: Budget = refusal.budget
        """The budget that has no room."""
        self.scope: str = f"{refusal.budget.per} {refusal.value}".strip()
        """The scope of the full account, such as ``tag:tenant acme``."""
        self.left_usd: Decimal | None = None if self.budget.max_nano_usd is None else usd_of(refusal.left.money)
        """The money that is left in the account, in US dollars; None without a limit on money."""
        self.left_tokens: int | None = None if self.budget.max_tokens is None else refusal.left.tokens
        """The tokens that are left in the account; None without a limit on tokens."""
        self.asked_usd: Decimal | None = (
            None if refusal.amount.nano_usd is None else usd_of(refusal.amount.nano_usd)
        )
        """The most that the call can cost, in US dollars; None if it is unknown."""
        self.asked_tokens: int = refusal.amount.tokens
        """The most tokens that the call can use."""
        self.fits_at: datetime | None = None
        """The time, UTC, when the window has room; None if it never has."""
        if refusal.fits_at_us is not None:
            self.fits_at = datetime.fromtimestamp(refusal.fits_at_us / 1e6, UTC)
        super().__init__(_text(refusal, self.fits_at))


def _text(refusal: Refusal, fits_at: datetime | None) -> str:
    budget = f"the budget of {refusal.budget.describe(refusal.value)}"
    if refusal.why == "unpriced":
        return (
            f"{budget} can't cover this call: its maximum cost is unknown. Add a price for its model, "
            'set max_output_tokens, or allow such calls with unpriced="allow"'
        )
    if refusal.why == "money":
        unspent, needed = f"{max(refusal.left.money, 0) / 1e9:.6g} USD", f"{refusal.amount.money / 1e9:.6g} USD"
    else:
        unspent, needed = f"{max(refusal.left.tokens, 0)} tokens", f"{refusal.amount.tokens} tokens"
    when = f". The call fits again at {fits_at:%Y-%m-%d %H:%M:%S} UTC" if fits_at is not None else ""
    return (
        f"{budget} has {unspent} left, and the call may need {needed}{when}. "
        "Lower max_output_tokens, or raise the budget"
    )

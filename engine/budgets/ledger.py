"""What is spent and what is held, for each account of each budget. Pure: no I/O, and no clock of its own.

A reservation is one of these, and never two of them:

    (none) ── reserve ──► held ── settle ──► spent
                           │
                           └──── lose ─────► unknown ── settle ──► spent

`held` and `unknown` count at the most that the call can cost, `spent` at what it did cost. A call counts in the
slot of the window in which it was reserved, whenever it ends. So the accounts agree with sums over the rows of the
trace, each row at the time of its start.

A reservation needs room in all accounts that look at the call. It takes room in all of them or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from .account import Account, AccountState, Amount, Refusal, SlotSum
from .budget import Budget, Payer


class _Hold:
    """A reservation: what it reserved, and where."""

    __slots__ = ("asked", "lost", "places")

    def __init__(self, asked: Amount, places: list[tuple[Account, SlotSum]]) -> None:
        self.asked = asked
        self.places = places
        self.lost = False


class Ledger:
    """All accounts of all budgets, and the reservations in them."""

    def __init__(
        self, budgets: Sequence[Budget], make_account: Callable[[Budget, str], Account] = Account
    ) -> None:
        self.budgets = tuple(budgets)
        self._make_account = make_account
        self._each: list[int] = [number for number, budget in enumerate(self.budgets) if budget.of is None]
        self._one: dict[tuple[str, str], list[int]] = {}
        for number, budget in enumerate(self.budgets):
            if budget.of is not None:
                self._one.setdefault((budget.per, budget.of), []).append(number)
        self._kinds = tuple({budget.per for budget in self.budgets if budget.of is not None})
        self._accounts: dict[tuple[int, str], Account] = {}
        self._holds: dict[str, _Hold] = {}

    def accounts(self, payer: Payer) -> list[Account]:
        """The accounts that look at a call. The work grows with their number, and not with that of the budgets."""
        found = [self._account(number, payer.value(self.budgets[number].per)) for number in self._each]
        for kind in self._kinds:
            value = payer.value(kind)
            found += [self._account(number, value) for number in self._one.get((kind, value), ())]
        return found

    def _account(self, number: int, value: str) -> Account:
        account = self._accounts.get((number, value))
        if account is None:
            account = self._accounts[number, value] = self._make_account(self.budgets[number], value)
        return account

    def would_refuse(self, payer: Payer, asked: Amount, now_us: int) -> list[Refusal]:
        """The refusals that a reservation would meet, of all accounts; none if it would be admitted."""
        refusals = (account.would_refuse(asked, now_us) for account in self.accounts(payer))
        return [refusal for refusal in refusals if refusal is not None]

    def reserve(self, hold_id: str, payer: Payer, asked: Amount, now_us: int) -> list[Refusal]:
        """Take room in all accounts of a call. Returns why not, and then takes none.

        Args:
            hold_id: The reservation's name, by which it is settled or lost. A name in use is refused.
            payer: Whose budgets are asked.
            asked: The most that the call can cost; without money, its price is not known.
            now_us: The time, in microseconds since the Unix epoch.

        Raises:
            ValueError: There is a reservation of that name.
        """
        if hold_id in self._holds:
            raise ValueError(f"there is a reservation {hold_id!r} already")
        accounts = self.accounts(payer)
        refusals = [refusal for account in accounts if (refusal := account.refuses(asked, now_us)) is not None]
        if refusals:
            return refusals
        places = [(account, account.slot_at(now_us)) for account in accounts]
        for account, found in places:
            account.add(found, found.held, asked)
        self._holds[hold_id] = _Hold(asked, places)
        return []

    def settle(self, hold_id: str, spent: Amount | None, counted: Collection[Budget] = ()) -> list[Account]:
        """Count what a call did cost in place of what it reserved. Returns its accounts; none if it has no hold.

        A call that was lost may be settled when something better is known.

        Args:
            hold_id: The reservation's name.
            spent: The cost and the tokens of the call; None if it was never sent.
            counted: The budgets that count this end already, because they were counted from the trace since.
        """
        hold = self._holds.pop(hold_id, None)
        if hold is None:
            return []
        for account, found in hold.places:
            account.add(found, found.unknown if hold.lost else found.held, hold.asked, -1)
            if spent is not None and account.budget not in counted:
                account.add(found, found.spent, spent)
        return [account for account, _ in hold.places]

    def lose(self, hold_id: str, counted: Collection[Budget] = ()) -> list[Account]:
        """Count a call at what it reserved, because nobody knows what it used. Returns its accounts.

        Args:
            hold_id: The reservation's name.
            counted: As in `settle`.
        """
        hold = self._holds.get(hold_id)
        if hold is None or hold.lost:
            return []
        hold.lost = True
        for account, found in hold.places:
            account.add(found, found.held, hold.asked, -1)
            if account.budget not in counted:
                account.add(found, found.unknown, hold.asked)
        return [account for account, _ in hold.places]

    def __contains__(self, hold_id: str) -> bool:
        """Whether there is a reservation of that name."""
        return hold_id in self._holds

    def rename(self, hold_id: str, new_id: str) -> None:
        """Give a reservation another name."""
        if hold_id in self._holds:
            self._holds[new_id] = self._holds.pop(hold_id)

    def release(self, hold_id: str) -> list[Account]:
        """Give back what a call reserved, because it was never sent. Returns its accounts."""
        return self.settle(hold_id, None)

    def account(self, budget: Budget, value: str) -> Account:
        """The account of a session, provider, model or value of a tag under one of the budgets."""
        return self._account(self.budgets.index(budget), value)

    def forget_ended(self, budget: Budget) -> None:
        """Forget what has ended in all accounts of a budget, so that it can be counted anew from the trace."""
        number = self.budgets.index(budget)
        for (of_budget, _), account in self._accounts.items():
            if of_budget == number:
                account.clear_ended()

    def states(self, now_us: int) -> Iterator[AccountState]:
        """All accounts, in the order of the budgets and of their first use."""
        for key in sorted(self._accounts, key=lambda key: key[0]):
            yield self._accounts[key].state(now_us)

    @property
    def held(self) -> tuple[str, ...]:
        """The names of the reservations of calls under way."""
        return tuple(name for name, hold in self._holds.items() if not hold.lost)

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of the reservations of calls whose usage is unknown."""
        return tuple(name for name, hold in self._holds.items() if hold.lost)

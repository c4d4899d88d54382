"""The budgets of one engine: admission, waiting, and events.

The ledger decides about reservations. This module adds the clock, waiting, past spending from the trace, and
events. Calls that wait for room in the same account are admitted in order of arrival. A call that needs room only
in other accounts does not wait for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import anyio
import msgspec

from callboard.bus import BudgetLow, BudgetRefused, BudgetReserved, BudgetSettled, Bus, Clock
from callboard.tracestore.rows import SpendingQuery, SpendingRow
from callboard.tracestore.store import Store

from ..calls.outcome import CallEnd, output_is_unknown
from .budget import OF_TREES, Budget, Payer, query_of
from .ledger import Account, AccountState, Amount, BudgetExceededError, Ledger, Refusal

# --- The spending in the trace ---

Load: TypeAlias = Callable[[Sequence[Budget], int], Awaitable["Counted"]]
"""A function that reads the past spending of budgets at a given time from the trace."""


class Counted(msgspec.Struct, frozen=True):
    """The past spending of some budgets, all read at the same time."""

    entries: list[tuple[Budget, SpendingRow, int]]
    """The sums. Each has its budget and a time in its slot, in microseconds since the Unix epoch."""
    committed_seq: int = 0
    """The number of the last event of this run that the sums include."""

    def count_in(self, ledger: Ledger) -> None:
        for budget, row, at_us in self.entries:
            amount = Amount(row.nano_usd, row.tokens)
            ledger.account(budget, row.value).book(amount, at_us, calls=row.calls, unknown=row.unknown)


def loader(
    store: Store | None, run_id: str, settle: Callable[[], Awaitable[object]], *, own_run: bool = False
) -> Load:
    """A function that reads past spending from the trace, for all runs or only for this run."""

    async def load(budgets: Sequence[Budget], now_us: int) -> Counted:
        if store is None:
            return Counted([])
        await settle()
        by_query: dict[SpendingQuery, list[Budget]] = {}
        # One query returns the sums of all values, so budgets for several values share the query.
        for budget in budgets:
            query = msgspec.structs.replace(query_of(budget, now_us), run_id=run_id if own_run else None)
            by_query.setdefault(msgspec.structs.replace(query, value=None), []).append(budget)
        queries = [
            msgspec.structs.replace(query, value=some[0].of) if len(some) == 1 else query
            for query, some in by_query.items()
        ]
        spending = await store.spending(queries, run_id)
        counted = Counted([], spending.committed_seq)
        for query, some, rows in zip(queries, by_query.values(), spending.rows, strict=True):
            by_value: dict[str | None, list[Budget]] = {}
            for budget in some:
                by_value.setdefault(budget.of, []).append(budget)
            for row in rows:
                at_us = now_us if query.slot_us is None else (query.since_us or 0) + row.slot * query.slot_us
                of_row = (*by_value.get(None, ()), *by_value.get(row.value, ()))
                counted.entries.extend((budget, row, at_us) for budget in of_row)
        return counted

    return load


_JOB = "/job"


def reservation(request_id: str, attempt: int) -> str:
    return f"{request_id}/{attempt}"


def job_of(request_id: str) -> str:
    """The name of the reservation for the job that a request created."""
    return request_id + _JOB


_LONGEST_NAP_SECONDS = 3600.0
"""The maximum wait, in seconds, before a call checks the clock again, because the clock may be changed."""

_LOAN_SECONDS = 2.0
"""Seconds that a call waits for room that another node has borrowed, before it is refused."""

_SHARED_NAP_SECONDS = 1.0
"""The maximum wait, in seconds, before a call checks again whether other nodes have returned room."""


# --- The budgets of an engine ---


class SharedBudgets(Protocol):
    """The budgets that the nodes of a cluster share. Each node may spend its grants."""

    def now_us(self) -> int:
        """The time that all nodes use for the windows, in microseconds since the epoch."""
        ...

    def account(self, budget: Budget, value: str) -> Account:
        """A new account, without a grant for this node."""
        ...

    async def secure(self, accounts: Sequence[Account], amount: Amount) -> None:
        """Request a grant for this node that is large enough for a call."""
        ...

    def reserved(self, accounts: Sequence[Account], amount: Amount) -> None: ...

    async def refresh(self) -> None:
        """Refresh the state of all accounts. If the store fails, the last state remains."""
        ...

    async def recount(self, budgets: Sequence[Budget]) -> None:
        """Count the calls of ended runs again, because prices have changed."""
        ...

    def change(self, added: Sequence[Budget], removed: Collection[Budget]) -> None:
        """Update the shared accounts after budgets were added to this node's ledger or removed from it."""
        ...

    async def carry(self, accounts: Sequence[Account]) -> None:
        """Report the amounts that this node spent before it created these accounts to the other nodes."""
        ...


def _account(shared: SharedBudgets, budget: Budget, value: str) -> Account:
    """A new account. The account of a turn is not shared with other nodes, because a turn runs on one node."""
    return Account(budget, value) if budget.per in OF_TREES else shared.account(budget, value)


class _End(msgspec.Struct, frozen=True):
    name: str | None
    payer: Payer
    spent: Amount
    unknown: bool
    seq: int


class _Waiter:
    def __init__(self, name: str, payer: Payer, amount: Amount) -> None:
        self.name = name
        self.payer = payer
        self.amount = amount
        self.admitted = False
        self.refusals: list[Refusal] = []
        self.answered = anyio.Event()


class Budgets:
    def __init__(
        self,
        budgets: Sequence[Budget],
        bus: Bus,
        clock: Clock,
        load: Load,
        shared: SharedBudgets | None = None,
    ) -> None:
        self.ledger = Ledger(budgets, Account if shared is None else partial(_account, shared))
        self._fixed = frozenset(budgets)
        self._shared = shared
        self._now_us = clock.now_us if shared is None else shared.now_us
        self._bus = bus
        self._load = load
        self._loaded = not budgets
        self._know(self.ledger.budgets)
        self._loading = anyio.Lock()
        self._waiters: list[_Waiter] = []
        self._loans: set[str] = set()
        self._loans_ended = anyio.Event()
        self._late: list[_End] | None = None  # calls that ended while the trace is being read

    def _know(self, budgets: Sequence[Budget]) -> None:
        self._some = bool(budgets)
        self.may_change_calls = any(each.when_full == "cheaper" or each.shorten_to is not None for each in budgets)
        """Whether a budget may change a call: to a cheaper model, or a shorter reply."""
        self._in_trace = tuple(each for each in budgets if each.per not in OF_TREES)

    def __bool__(self) -> bool:
        return self._some

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    async def loaded(self) -> None:
        """Wait until past spending was read from the trace."""
        if self._loaded:
            return
        async with self._loading:
            if not self._loaded:
                if self._shared is None:  # shared accounts count the trace in the shared store
                    await self._count(self._in_trace)
                self._loaded = True

    async def change(self, add: Sequence[Budget] = (), remove: Collection[Budget] = ()) -> None:
        """Activate budgets, and then remove others.

        Earlier spending and calls in progress are counted. A budget that is already active does not change. The
        engine's own budgets can't be removed. Raises StoreError if the trace can't be read. Then nothing changes.
        """
        await self.loaded()
        async with self._loading:
            current = frozenset(self.ledger.budgets)
            added = [each for each in dict.fromkeys(add) if each not in current]
            gone = {each for each in remove if each in current and each not in self._fixed and each not in add}
            if self._shared is not None:
                self._shared.change(added, ())
            in_trace = [each for each in added if each.per not in OF_TREES]
            await self._count(in_trace, added)
            if self._shared is not None:
                mine = [account for each in in_trace for account in self.ledger.accounts_of(each)]
                try:
                    await self._shared.carry(mine)
                except BaseException:
                    self._drop(added)
                    raise
            self._drop(gone)
        self._admit()

    def _drop(self, budgets: Collection[Budget]) -> None:
        self.ledger.remove(budgets)
        if self._shared is not None:
            self._shared.change((), budgets)
        self._know(self.ledger.budgets)

    async def recount(self, *, all_of_them: bool = False) -> None:
        """Count ended calls again, in budgets with `follows_repricing`."""
        following = [each for each in self._in_trace if each.follows_repricing or all_of_them]
        if not following or not self._loaded:
            return
        async with self._loading:
            if self._shared is None:
                await self._count(following)
            else:
                await self._shared.recount(following)
        self._admit()

    async def _count(self, budgets: Sequence[Budget], added: Sequence[Budget] = ()) -> None:
        """Read ended calls from the trace, and then activate `added`.

        Calls that end during the query stay reserved until it is certain whether the sums include them.
        """
        late = self._late = []
        try:
            counted = await self._load(budgets, self._now_us())
            if added:
                self.ledger.add(added)
                self._know(self.ledger.budgets)
            for budget in budgets:
                for account in self.ledger.accounts_of(budget):
                    account.clear_ended()
            counted.count_in(self.ledger)
        except BaseException:
            self._late = None
            for end in late:
                self._settle(end)
            raise
        self._late = None
        for end in late:
            self._settle(end, budgets if end.seq <= counted.committed_seq else ())

    async def refresh(self) -> None:
        if self._shared is not None:
            await self._shared.refresh()

    def forget_turn(self, turn_id: str) -> None:
        self.ledger.forget_turn(turn_id)

    def states(self) -> list[AccountState]:
        return list(self.ledger.states(self._now_us()))

    # --- Before a call ---

    async def reserve(self, name: str, payer: Payer, amount: Amount) -> None:
        """Reserve the maximum cost of a call, or wait until there is room."""
        if not self._loaded:
            await self.loaded()
        refusals = [] if self._must_queue(payer) else self._try(name, payer, amount)
        if refusals and self._shared is not None:
            await self._shared.secure(self._shared_accounts(payer), amount)
            refusals = self._try(name, payer, amount)
        while refusals and [each for each in payer.accounts if await each.secure(amount, self._now_us())]:
            refusals = self._try(name, payer, amount)  # another call may have been faster
        if refusals and self._loans and all(refusal.may_fit for refusal in refusals):
            # A tool's result may arrive before the message that returns the room it borrowed.
            with anyio.move_on_after(_LOAN_SECONDS):
                while refusals and self._loans:
                    await self._loans_ended.wait()
                    refusals = self._try(name, payer, amount)
        if refusals is None:
            return
        if refusals:
            self._require_patience(name, payer, refusals)
        await self._wait(_Waiter(name, payer, amount))

    def reserve_now(self, name: str, payer: Payer, amount: Amount) -> bool:
        """Reserve without waiting. Returns False if there is no room, or an earlier call waits for it."""
        return self._loaded and not self._must_queue(payer) and self._try(name, payer, amount) is None

    def _try(self, name: str, payer: Payer, amount: Amount) -> list[Refusal] | None:
        """Try to reserve. Returns the refusals, or None if it is reserved."""
        refusals = self.ledger.reserve(name, payer, amount, self._now_us())
        if refusals:
            return refusals
        if self._shared is not None:
            self._shared.reserved(self._shared_accounts(payer), amount)
        if self._bus.has_subscribers(BudgetReserved):
            self._publish(BudgetReserved(nano_usd=amount.nano_usd, tokens=amount.tokens), name, payer)
        return None

    def _shared_accounts(self, payer: Payer) -> list[Account]:
        return [account for account in self.ledger.accounts(payer) if account.budget.per not in OF_TREES]

    def lend(self, name: str, payer: Payer, amount: Amount) -> Refusal | None:
        """Reserve room in the accounts of a tree for calls of another node. Returns the refusal if there is no
        room.
        """
        accounts = [account for account in self.ledger.accounts(payer) if account.budget.per in OF_TREES]
        refusals = self.ledger.reserve_in(accounts, name, amount, self._now_us())
        if not refusals:
            self._loans.add(name)
        return next(iter(refusals), None)

    def take_back(self, names: Sequence[str], spent: Amount) -> None:
        """Count the amount that another node has spent of the room that was reserved for it. Release the rest."""
        for number, name in enumerate(names):
            self.ledger.settle(name, None if number else spent)
        self._loans.difference_update(names)
        self._loans_ended.set()
        self._loans_ended = anyio.Event()
        if self._waiters:
            self._admit()

    def would_refuse(self, payer: Payer, amount: Amount) -> bool:
        return bool(self.ledger.would_refuse(payer, amount, self._now_us()))

    def too_dear(self, payer: Payer, amount: Amount) -> Refusal | None:
        """The refusal of a budget that prefers cheaper models; None if there is none."""
        refusals = self.ledger.would_refuse(payer, amount, self._now_us())
        return next((refusal for refusal in refusals if refusal.budget.when_full == "cheaper"), None)

    def shortened(self, payer: Payer, amount_of: Callable[[int], Amount], limit: int) -> int:
        """The maximum number of output tokens that fits, if the budgets allow a shorter reply."""
        now_us = self._now_us()
        refusals = self.ledger.would_refuse(payer, amount_of(limit), now_us)
        allowed = [refusal.budget.shorten_to for refusal in refusals]
        least = max((each for each in allowed if each is not None), default=limit)
        if None in allowed or least >= limit or self.ledger.would_refuse(payer, amount_of(least), now_us):
            return limit
        fits, too_many = least, limit
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.ledger.would_refuse(payer, amount_of(middle), now_us):
                too_many = middle
            else:
                fits = middle
        return fits

    def _must_queue(self, payer: Payer) -> bool:
        """Whether an earlier call waits for room in an account of this payer."""
        if not self._waiters:
            return False
        awaited = {id(account) for waiter in self._waiters for account in self._short_of(waiter)}
        return any(
            id(account) in awaited and account.budget.when_full == "wait"
            for account in self.ledger.accounts(payer)
        )

    def _short_of(self, waiter: _Waiter) -> list[Account]:
        now_us = self._now_us()
        accounts = self.ledger.accounts(waiter.payer)
        return [account for account in accounts if account.refuses(waiter.amount, now_us) is not None]

    def _require_patience(self, name: str, payer: Payer, refusals: list[Refusal]) -> None:
        """Raise BudgetExceededError for the first refusal that waiting can't resolve, or whose budget does not
        allow waiting.
        """
        for refusal in refusals:
            if refusal.budget.when_full != "wait" or not refusal.may_fit:
                self._publish(
                    BudgetRefused(
                        scope=refusal.budget.per,
                        value=refusal.value,
                        why=refusal.why,
                        asked_nano_usd=refusal.amount.nano_usd,
                        asked_tokens=refusal.amount.tokens,
                        left_nano_usd=refusal.left.nano_usd,
                        left_tokens=refusal.left.tokens,
                        fits_at_us=refusal.fits_at_us,
                    ),
                    name,
                    payer,
                )
                raise BudgetExceededError(refusal)

    # --- Waiting ---

    async def _wait(self, waiter: _Waiter) -> None:
        self._waiters.append(waiter)
        try:
            self._admit()
            while not waiter.admitted:
                with anyio.move_on_after(self._pause(waiter)):
                    await waiter.answered.wait()
                if self._shared is not None and not waiter.admitted:
                    await self._shared.secure(self._shared_accounts(waiter.payer), waiter.amount)
                if waiter.refusals:
                    self._require_patience(waiter.name, waiter.payer, waiter.refusals)
                self._admit()
        except BaseException:
            if waiter.admitted:
                self.release(waiter.name)
            else:
                self._waiters.remove(waiter)
                self._admit()
            raise

    def _pause(self, waiter: _Waiter) -> float:
        """Seconds until a window may have room for a call."""
        now_us = self._now_us()
        refusals = self.ledger.would_refuse(waiter.payer, waiter.amount, now_us)
        moments = [refusal.fits_at_us for refusal in refusals if refusal.fits_at_us is not None]
        longest = _LONGEST_NAP_SECONDS if self._shared is None else _SHARED_NAP_SECONDS
        return min([longest, *(max(moment - now_us, 0) / 1e6 + 0.001 for moment in moments)])

    def _admit(self) -> None:
        """Admit waiting calls that have room now, in order. A call never takes room that an earlier call waits
        for.
        """
        short_accounts: set[int] = set()
        for waiter in list(self._waiters):
            accounts = self.ledger.accounts(waiter.payer)
            if any(id(account) in short_accounts for account in accounts):
                short_accounts.update(id(account) for account in self._short_of(waiter))
                continue
            refusals = self._try(waiter.name, waiter.payer, waiter.amount)
            if refusals is None:
                waiter.admitted = True
                self._waiters.remove(waiter)
                waiter.answered.set()
                continue
            if not all(refusal.may_fit for refusal in refusals):
                waiter.refusals = refusals
                waiter.answered.set()
            short_accounts.update(id(account) for account in self._short_of(waiter))

    # --- After a call ---

    def settle(self, name: str | None, payer: Payer, end: CallEnd, seq: int) -> None:
        ended = _End(name, payer, amount_of(end), output_is_unknown(end), seq)
        if self._late is not None:
            self._late.append(ended)
        else:
            self._settle(ended)

    def _settle(self, end: _End, counted: Sequence[Budget] = ()) -> None:
        if end.name is None or (end.name not in self.ledger and end.name.endswith(_JOB)):
            accounts = self.ledger.accounts(end.payer)
            for account in accounts:
                if account.budget not in counted:
                    account.book(end.spent, self._now_us())
        elif end.unknown:
            accounts = self.ledger.lose(end.name, counted)
        else:
            accounts = self.ledger.settle(end.name, end.spent, counted)
        if not accounts:
            return
        if self._bus.has_subscribers(BudgetSettled):
            settled = BudgetSettled(nano_usd=end.spent.nano_usd, tokens=end.spent.tokens, unknown=end.unknown)
            self._publish(settled, end.name or "", end.payer)
        self._publish_low(accounts, end.name or "", end.payer)
        if self._waiters:
            self._admit()

    def keep(self, name: str | None, new_name: str) -> None:
        """Move a reservation to another name, for a job that ends later."""
        if name is not None:
            self.ledger.rename(name, new_name)

    def release(self, name: str) -> None:
        """Release the reservation of a call that was never made."""
        if self.ledger.release(name):
            self._admit()

    def _publish_low(self, accounts: Sequence[Account], name: str, payer: Payer) -> None:
        now_us = self._now_us()
        for account in accounts:
            if account.is_newly_low(now_us):
                state = account.state(now_us)
                low = BudgetLow(
                    scope=account.budget.per,
                    value=account.value,
                    left_nano_usd=state.left_nano_usd,
                    left_tokens=state.left_tokens,
                )
                self._publish(low, name, payer)

    def _publish(
        self, event: BudgetReserved | BudgetSettled | BudgetRefused | BudgetLow, name: str, payer: Payer
    ) -> None:
        request_id, _, attempt = name.rpartition("/")
        self._bus.publish(
            event,
            session_id=payer.session_id or None,
            request_id=request_id or None,
            attempt=int(attempt) if attempt.isdigit() else None,
            tags=dict(payer.tags) or None,
        )


def amount_of(end: CallEnd) -> Amount:
    tokens = 0 if end.usage is None else end.usage.total_tokens
    return Amount(0 if end.cost is None else end.cost.nano_usd, tokens)

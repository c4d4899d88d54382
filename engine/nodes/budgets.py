"""A node's slices of shared budgets. A node requests slices from the store, and returns idle slices.

If a call does not fit into the node's slices, the node requests larger slices from the store. It sends one request
at a time, each with a number. So a lost answer, or a statement that runs after its connection was lost, is
harmless. The node stops using a slice before it returns the slice to the store, so it never spends more than it
has.

A request without an answer, because the store failed or the call was cancelled, may still be executed later. So
before the node uses the next answer, it sets the same slices again with a higher number. The earlier request then
has no effect, and the excess is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

import anyio
import msgspec

from callboard.bus import Clock, Log, StoreError
from callboard.tracestore.nodes import AccountBalance, Allotment, Answer, LedgerTables, SliceRequest, Slot, by_name
from callboard.tracestore.rows import SpendingQuery

from ..budgets.budget import ENDLESS_US, Budget, query_of
from ..budgets.budget import Slot as WindowSlot
from ..budgets.ledger import Account, AccountState, Amount, Refusal


class Scope:
    """The shared account of one value under one budget. Pure. The engine's account has an empty value."""

    def __init__(self, budget: Budget, value: str) -> None:
        self.budget = name_of(budget)
        self.value = value
        self.limits = (budget.max_nano_usd, budget.max_tokens)
        self._budget = budget
        self._window = budget.counted_over

    def slot(self, now_us: int) -> Slot:
        return self.shared_slot(self._window.slot(now_us))

    def query(self, now_us: int) -> SpendingQuery:
        """The calls of the trace that count at a given time."""
        only = None if self._budget.per == "engine" else self.value
        return msgspec.structs.replace(query_of(self._budget, now_us), value=only)

    def counted_slot(self, query: SpendingQuery, number: int, now_us: int) -> Slot:
        """The slot for the slot number that an answer to `query` contains."""
        return self.slot(now_us if query.slot_us is None else (query.since_us or 0) + number * query.slot_us)

    def shared_slot(self, slot: WindowSlot) -> Slot:
        """A slot of the window with boundaries that are equal on all nodes."""
        return Slot(slot.start_us, self._window.forgets_us(slot))


def name_of(budget: Budget) -> str:
    """The name of a budget in the shared store. It is equal on all nodes. Budgets that count different calls have
    different names.
    """
    scope = budget.per if budget.of is None else f"{budget.per}={budget.of}"
    limits = f"{budget.max_nano_usd} nano-USD, {budget.max_tokens} tokens"
    follows = ", current prices" if budget.follows_repricing else ""
    imported = ", imported calls" if budget.counts_imported else ""
    return f"{scope}; {limits}; {budget.window} {budget.zone}{follows}{imported}"


# --- Shared accounts and slices ---

_NOTHING: Allotment = (0, 0)


class SharedAccount(Account):
    def __init__(self, budget: Budget, value: str) -> None:
        super().__init__(budget, value)
        self.scope = Scope(budget, value)
        self.granted: dict[Slot, Allotment] = {}
        """The node's slices, by slot of the window."""
        self.reserved_us = -ENDLESS_US
        """The time of the last reservation, in microseconds since the epoch."""
        self.recently: Allotment = _NOTHING
        """The amount reserved since the last check of idle slices. The next requested slice has room for it."""
        self._spent = self._others = _NOTHING

    def apply(self, balance: AccountBalance) -> None:
        self.granted[balance.slot] = balance.granted
        self._spent, self._others = balance.spent, balance.others

    def used(self, slot: Slot) -> Allotment:
        """The amount that this node has used in a slot."""
        found = self._slots.get(slot.start_us)
        return _NOTHING if found is None else (found.money, found.tokens)

    def slots_in_use(self) -> list[Slot]:
        """The slots in which this node has used a part of its slice."""
        used = [found.slot for found in self._slots.values() if found.money or found.tokens]
        return [self.scope.shared_slot(slot) for slot in used]

    def short_of(self, amount: Amount, now_us: int) -> Allotment | None:
        """The size that the current slice needs for a reservation; None if it is large enough."""
        slot = self.scope.slot(now_us)
        used, has = self.used(slot), self.granted.get(slot, _NOTHING)
        needs = (used[0] + amount.money, used[1] + amount.tokens)
        limited = [limit is not None for limit in self.scope.limits]
        fits = all(need <= size for need, size, counts in zip(needs, has, limited, strict=True) if counts)
        return None if fits else needs

    def idle(self, now_us: int, idle_us: int, *, has_demand: bool) -> list[tuple[Slot, Allotment]]:
        """The slices that are larger than needed, each with the needed size.

        A slice with a recent reservation may be larger than needed, unless another node needs room. Slices of
        ended slots are no longer needed.
        """
        current = self.scope.slot(now_us)
        found = []
        for slot, size in list(self.granted.items()):
            if slot.forgotten_us <= now_us:
                del self.granted[slot]
                continue
            used = self.used(slot)
            in_use = slot == current and not has_demand and now_us - self.reserved_us < idle_us
            if not in_use and (size[0] > used[0] or size[1] > used[1]):
                found.append((slot, (min(size[0], used[0]), min(size[1], used[1]))))
        return found

    # --- Interface of an account ---

    def refuses(self, amount: Amount, now_us: int) -> Refusal | None:
        """The reason why an amount has no room in this node's slices; None if it has room."""
        refusal = self.would_refuse(amount, now_us)
        if refusal is None and self.short_of(amount, now_us) is not None:
            return self._refusal("money" if self._max_money is not None else "tokens", amount, now_us)
        return refusal

    def would_refuse(self, amount: Amount, now_us: int) -> Refusal | None:
        """The reason why an amount has no room in the whole cluster, by the last known state; None if it fits."""
        refusal = super().refuses(_with(_with(amount, self._spent), self._others), now_us)
        return None if refusal is None else self._refusal(refusal.why, amount, now_us)

    def may_come(self, amount: Amount, now_us: int) -> bool:
        """Whether an amount would have room if other nodes returned all their slices."""
        return super().refuses(_with(amount, self._spent), now_us) is None

    def _is_low(self, money: int, tokens: int) -> bool:
        spent, others = self._spent, self._others
        return super()._is_low(money + spent[0] + others[0], tokens + spent[1] + others[1])

    def state(self, now_us: int) -> AccountState:
        """The account's state, including amounts in the trace and amounts that other nodes hold or have spent."""
        local_state = super().state(now_us)
        return msgspec.structs.replace(
            local_state, spent=_plus(local_state.spent, self._spent), held=_plus(local_state.held, self._others)
        )

    def _fits_at_us(self, why: Literal["money", "tokens"], amount: Amount, now_us: int) -> int | None:
        """The end of the slot. An earlier time is not known, because other nodes' use in the window is unknown
        here.
        """
        limit = self._max_money if why == "money" else self._max_tokens
        need = amount.money if why == "money" else amount.tokens
        end = self._window.slot(now_us).end_us
        return end if limit is not None and need <= limit and end < ENDLESS_US else None


def _plus(amount: Amount, more: Allotment) -> Amount:
    return Amount(amount.money + more[0], amount.tokens + more[1])


def _with(amount: Amount, more: Allotment) -> Amount:
    """An amount plus the amount spent elsewhere. An unknown price stays unknown."""
    return Amount(None if amount.nano_usd is None else amount.money + more[0], amount.tokens + more[1])


_log = Log("engine.shared_budgets")

_Slices: TypeAlias = list[tuple[SharedAccount, Slot]]

LOOK_SECONDS = 1.0
"""Seconds between two checks of the accounts in use. A check also returns idle slices."""

TRIES = 4
"""The maximum number of attempts of a call to get idle slices of other nodes. The attempts are `LOOK_SECONDS` / 2
apart.
"""

IDLE_US = 2_000_000
"""Microseconds after a reservation during which a slice may be larger than needed."""

FORGET_US = 60_000_000
"""An account is checked until this many microseconds after its last reservation."""

SETTLE_SECONDS = 15.0
"""Seconds between two searches for slices of dead nodes."""


class BudgetSlices:
    """The budget slices of one node, see `SharedBudgets`."""

    shared = True
    """Whether the shared store has the trace of all calls at the end; set before `close`."""

    def __init__(
        self,
        tables: LedgerTables,
        node: str,
        budgets: Sequence[Budget],
        clock: Clock,
        without_store: Literal["refuse", "admit"],
    ) -> None:
        self._tables = tables
        self._node = node
        self._named = {name_of(budget): budget for budget in budgets}
        self._clock = clock
        self._admits = without_store == "admit"
        self._accounts: list[SharedAccount] = []
        self._asking = anyio.Lock()
        self._number = 0
        self._ahead_us = 0  # microseconds by which the store's clock is ahead of the engine's
        self._overdrawn = False
        self._unsure: set[tuple[SharedAccount, Slot]] = set()
        """The slices of requests without an answer."""

    # --- Interface for budgets ---

    def now_us(self) -> int:
        """The store's time. Until the store has answered, the engine's time."""
        return self._clock.now_us() + self._ahead_us

    def account(self, budget: Budget, value: str) -> SharedAccount:
        account = SharedAccount(budget, value)
        self._accounts.append(account)
        return account

    async def secure(self, accounts: Sequence[Account], amount: Amount) -> None:
        """Get large enough slices for a call, if there is room.

        Idle slices of other nodes are also room. Those nodes return their idle slices when they detect the
        request, and this method waits for that.
        """
        needed = _in_order(accounts)
        for again in range(TRIES):
            if again:
                await anyio.sleep(LOOK_SECONDS / 2)
            async with self._asking:
                if not self._lacks(needed, amount):
                    return
                try:
                    await self._ask(needed, amount)
                except StoreError as error:
                    if not self._admits:
                        raise
                    _log.warning("admitted_without_store", error=str(error))
                    self._overdraw(needed, amount)
                    return
            now_us = self.now_us()
            if not all(account.may_come(amount, now_us) for account in self._lacks(needed, amount)):
                return

    def reserved(self, accounts: Sequence[Account], amount: Amount) -> None:
        now_us = self.now_us()
        for account in accounts:
            assert isinstance(account, SharedAccount)
            account.reserved_us = now_us
            account.recently = (account.recently[0] + amount.money, account.recently[1] + amount.tokens)

    async def refresh(self) -> None:
        try:
            await self._look(self._accounts)
        except StoreError as error:
            _log.warning("accounts_not_asked", error=str(error))

    async def recount(self, budgets: Sequence[Budget]) -> None:
        names = {name_of(budget) for budget in budgets}
        accounts = [account for account in self._accounts if account.scope.budget in names]
        await self._tables.recount([account.scope for account in _in_order(accounts)])
        await self._look(accounts)

    def change(self, added: Sequence[Budget], removed: Collection[Budget]) -> None:
        """See `SharedBudgets.change`. A removed budget's slices stay in the store unused until the node ends."""
        self._named.update((name_of(budget), budget) for budget in added)
        for budget in removed:
            self._named.pop(name_of(budget), None)
        self._accounts = [account for account in self._accounts if account.scope.budget in self._named]
        self._unsure = {each for each in self._unsure if each[0].scope.budget in self._named}

    async def carry(self, accounts: Sequence[Account]) -> None:
        """Get slices for the amounts that this node has already used in new accounts, even if there is no room.

        Until then, the store counts these amounts from the trace.
        """
        carried = _in_order(accounts)
        if not carried:
            return
        async with self._asking:
            slices = [(account, slot) for account in carried for slot in account.slots_in_use()]
            if slices:
                await self._grant(lambda now_us: slices, _request_of_use)
        await self._tables.recount([account.scope for account in carried])
        await self._look(carried)

    async def run(self) -> None:
        """Check accounts, return idle slices, and settle the slices of dead nodes, until cancelled."""
        settled = anyio.current_time()
        while True:
            await anyio.sleep(LOOK_SECONDS)
            try:
                await self._tend()
                if self._named and anyio.current_time() - settled >= SETTLE_SECONDS:
                    settled = anyio.current_time()
                    await self._tables.settle_dead(self._scope_of)
            except StoreError as error:
                _log.debug("accounts_not_tended", error=str(error))

    async def close(self) -> None:
        """Release all slices if the shared trace has all calls. Otherwise the slices are counted until the trace
        has them.
        """
        if self.shared and self._accounts:
            await self._tables.settle(self._node, [account.scope for account in _in_order(self._accounts)])

    # --- Helpers ---

    def _lacks(self, accounts: Sequence[SharedAccount], amount: Amount) -> list[SharedAccount]:
        """The accounts in which this node's slice is too small."""
        now_us = self.now_us()
        return [account for account in accounts if account.short_of(amount, now_us) is not None]

    async def _ask(self, accounts: Sequence[SharedAccount], amount: Amount) -> None:
        def requests(account: SharedAccount, slot: Slot) -> SliceRequest:
            used = account.used(slot)
            return SliceRequest(
                account.scope, slot, (used[0] + amount.money, used[1] + amount.tokens), account.recently
            )

        def slices(now_us: int) -> _Slices:
            return [(account, account.scope.slot(now_us)) for account in accounts]

        await self._grant(slices, requests)

    async def _grant(
        self, slices: Callable[[int], _Slices], requests: Callable[[SharedAccount, Slot], SliceRequest]
    ) -> None:
        requested: _Slices = []

        def ask(now_us: int) -> list[SliceRequest]:
            requested[:] = slices(now_us)
            self._unsure.update(requested)
            return [requests(account, slot) for account, slot in requested]

        self._number += 1
        began = self._clock.now_us()
        answer = await self._tables.grant(self._node, self._number, ask)
        self._unsure.difference_update(requested)
        self._take_in([account for account, _ in requested], answer, began)

    async def _make_sure(self) -> None:
        """Set the slices of unanswered requests again, so that these requests can't take effect later."""
        slices = sorted(self._unsure, key=lambda each: by_name(each[0].scope))
        if slices:
            await self._grant(
                lambda now_us: slices, lambda account, slot: SliceRequest(account.scope, slot, (0, 0), forced=True)
            )

    def _take_in(self, accounts: Sequence[SharedAccount], answer: Answer, began_us: int) -> None:
        for account, balance in zip(accounts, answer.balances, strict=True):
            account.apply(balance)
        self._ahead_us = answer.now_us - (began_us + self._clock.now_us()) // 2

    def _overdraw(self, accounts: Sequence[SharedAccount], amount: Amount) -> None:
        """Admit a call without the store: enlarge this node's slices by the amount, and report that to the store
        later.
        """
        self._overdrawn = True
        now_us = self.now_us()
        for account in accounts:
            needs = account.short_of(amount, now_us)
            if needs is not None:
                account.granted[account.scope.slot(now_us)] = needs

    async def _tend(self) -> None:
        now_us = self.now_us()
        in_use = [account for account in self._accounts if now_us - account.reserved_us < FORGET_US]
        if self._overdrawn:
            await self._report_admitted()
        async with self._asking:
            await self._make_sure()
        demand = await self._look(in_use) if in_use else {}
        for account in in_use:
            account.recently = (0, 0)
        await self._give_back(demand)

    async def _look(self, accounts: Sequence[SharedAccount]) -> dict[SharedAccount, bool]:
        """Refresh the state of accounts. Returns for each account whether it just refused another node."""
        ordered = _in_order(accounts)
        if not ordered:
            return {}
        async with self._asking:
            await self._make_sure()
            began = self._clock.now_us()
            answer = await self._tables.look(self._node, [account.scope for account in ordered])
            self._take_in(ordered, answer, began)
        return dict(zip(ordered, answer.wanted, strict=True))

    async def _give_back(self, demand: dict[SharedAccount, bool]) -> None:
        async with self._asking:
            now_us = self.now_us()
            slices: _Slices = []
            for account in _in_order(self._accounts):
                for slot, size in account.idle(now_us, IDLE_US, has_demand=demand.get(account, False)):
                    account.granted[slot] = size
                    slices.append((account, slot))
            if slices:
                self._number += 1
                self._unsure.update(slices)
                sizes = [(account.scope, slot, account.granted[slot]) for account, slot in slices]
                await self._tables.give_back(self._node, self._number, sizes)
                self._unsure.difference_update(slices)

    async def _report_admitted(self) -> None:
        async with self._asking:
            slices = [(account, slot) for account in _in_order(self._accounts) for slot in account.granted]
            await self._grant(lambda now_us: slices, _request_of_use)
            self._overdrawn = False

    def _scope_of(self, name: str, value: str) -> Scope | None:
        budget = self._named.get(name)
        return None if budget is None else Scope(budget, value)


def _request_of_use(account: SharedAccount, slot: Slot) -> SliceRequest:
    """A request for the amount that is already used, even if there is no room."""
    return SliceRequest(account.scope, slot, account.used(slot), forced=True)


def _in_order(accounts: Sequence[Account]) -> list[SharedAccount]:
    """Accounts in the order in which all nodes lock them."""
    shared = [account for account in accounts if isinstance(account, SharedAccount)]
    return sorted(shared, key=lambda account: by_name(account.scope))

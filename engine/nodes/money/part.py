"""The part of a node that has slices of shared budgets granted, and gives back what lies idle.

The store is asked for calls that don't fit into what the node has: one question at a time, with rising numbers, so
that an answer that was lost, or a statement that outlives its connection, does no harm. What is given back is not
used any more from the moment before the store is told. So the node never believes to have more than it has.

A change whose answer is missing, because the store was gone or the call was cancelled, may have been made or may
still be made. Before the node trusts what it reads there, it says a size of the same slices with a higher number.
That tells it what the store has, and nothing earlier can change it any more; what is too much is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import anyio

from callboard.bus import Clock, Log, StoreError
from callboard.tracestore.nodes import Answer, LedgerTables, Slot, Want, by_name

from ...budgets.account import Account, Amount
from ...budgets.budget import Budget
from .account import SharedAccount
from .scope import Scope, name_of

_log = Log("engine.shared_budgets")

_Slices: TypeAlias = list[tuple[SharedAccount, Slot]]

LOOK_SECONDS = 1.0
"""How often accounts in use are looked at, and idle slices given back."""

TRIES = 4
"""How often a call asks for what other nodes have and may not use, half a look apart."""

IDLE_US = 2_000_000
"""The time after a reservation for which a slice may be larger than it needs to be, in microseconds."""

FORGET_US = 60_000_000
"""The time after a reservation for which an account is looked at, in microseconds."""

SETTLE_SECONDS = 15.0
"""How often it is looked for slices of nodes that are gone."""


class BudgetSlices:
    """The slices of one node. It is what `Budgets` asks as its `SharedBudgets`.

    Args:
        tables: The shared rows.
        node: The node.
        budgets: The budgets of its engine.
        clock: The engine's clock.
        without_store: Whether calls are admitted while the store can't be asked.
    """

    name = "shared budgets"
    shared = True
    """Whether, at the end, the trace of all calls is in the shared store; set before `close`."""

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
        self._ahead_us = 0  # of the store's clock before the engine's
        self._overdrawn = False
        self._unsure: set[tuple[SharedAccount, Slot]] = set()
        """The slices of changes whose answers are missing."""

    # -- As budgets ask it

    def now_us(self) -> int:
        """The time of the store's clock, as far as it is known, in microseconds since the epoch."""
        return self._clock.now_us() + self._ahead_us

    def account(self, budget: Budget, value: str) -> SharedAccount:
        """A new account, of which this node has nothing yet."""
        account = SharedAccount(budget, value)
        self._accounts.append(account)
        return account

    async def secure(self, accounts: Sequence[Account], asked: Amount) -> None:
        """Have as much granted to this node as a call needs, if it is there.

        What other nodes have and don't use is there as well: they give it back when they learn that somebody lacks
        it, and that is waited for.

        Raises:
            StoreError: Nobody can be asked, and calls are not admitted then.
        """
        needed = _in_order(accounts)
        for again in range(TRIES):
            if again:
                await anyio.sleep(LOOK_SECONDS / 2)
            async with self._asking:
                if not self._lacks(needed, asked):
                    return
                try:
                    await self._ask(needed, asked)
                except StoreError as error:
                    if not self._admits:
                        raise
                    _log.warning("admitted_without_store", error=str(error))
                    self._overdraw(needed, asked)
                    return
            now_us = self.now_us()
            if not all(account.may_come(asked, now_us) for account in self._lacks(needed, asked)):
                return

    def reserved(self, accounts: Sequence[Account], asked: Amount) -> None:
        """Take note of a reservation."""
        now_us = self.now_us()
        for account in accounts:
            assert isinstance(account, SharedAccount)
            account.add_asked(asked, now_us)

    async def refresh(self) -> None:
        """Ask how all accounts stand. A store that can't be asked leaves what is known."""
        try:
            await self._look(self._accounts)
        except StoreError as error:
            _log.warning("accounts_not_asked", error=str(error))

    async def count_anew(self, budgets: Sequence[Budget]) -> None:
        """Have the trace of ended runs counted anew.

        Raises:
            StoreError: The store can't be asked.
        """
        names = {name_of(budget) for budget in budgets}
        accounts = [account for account in self._accounts if account.scope.budget in names]
        await self._tables.count_anew([account.scope for account in _in_order(accounts)])
        await self._look(accounts)

    # -- As a part of a node

    async def run(self) -> None:
        """Look, give back, and settle what dead nodes left, until cancelled."""
        settled = anyio.current_time()
        while True:
            await anyio.sleep(LOOK_SECONDS)
            try:
                await self._tend()
                if anyio.current_time() - settled >= SETTLE_SECONDS:
                    settled = anyio.current_time()
                    await self._tables.settle_dead(self._scope_of)
            except StoreError as error:
                _log.debug("accounts_not_tended", error=str(error))

    async def drain(self) -> None:
        """Nothing: what was spent counts in its slices until the trace has it."""

    async def close(self) -> None:
        """Let go of all slices, if the shared trace has all calls. Otherwise they count until it has them."""
        if self.shared and self._accounts:
            await self._tables.settle(self._node, [account.scope for account in _in_order(self._accounts)])

    # -- How

    def _lacks(self, accounts: Sequence[SharedAccount], asked: Amount) -> list[SharedAccount]:
        """The accounts of which this node hasn't got enough."""
        now_us = self.now_us()
        return [account for account in accounts if account.short_of(asked, now_us) is not None]

    async def _ask(self, accounts: Sequence[SharedAccount], asked: Amount) -> None:
        def wants(account: SharedAccount, slot: Slot) -> Want:
            used = account.used(slot)
            return Want(account.scope, slot, (used[0] + asked.money, used[1] + asked.tokens), account.recently)

        def slices(now_us: int) -> _Slices:
            return [(account, account.scope.slot(now_us)) for account in accounts]

        await self._grant(slices, wants)

    async def _grant(self, slices: Callable[[int], _Slices], wants: Callable[[SharedAccount, Slot], Want]) -> None:
        """Ask for slices, and take in the answer.

        Args:
            slices: Which, at a moment of the store's clock.
            wants: What is wanted of each.
        """
        asked: _Slices = []

        def ask(now_us: int) -> list[Want]:
            asked[:] = slices(now_us)
            self._unsure.update(asked)
            return [wants(account, slot) for account, slot in asked]

        self._number += 1
        began = self._clock.now_us()
        answer = await self._tables.grant(self._node, self._number, ask)
        self._unsure.difference_update(asked)
        self._take_in([account for account, _ in asked], answer, began)

    async def _make_sure(self) -> None:
        """Learn what became of changes whose answers are missing, and have none of them made later."""
        slices = sorted(self._unsure, key=lambda each: by_name(each[0].scope))
        if slices:
            await self._grant(
                lambda now_us: slices, lambda account, slot: Want(account.scope, slot, (0, 0), forced=True)
            )

    def _take_in(self, accounts: Sequence[SharedAccount], answer: Answer, began_us: int) -> None:
        for account, standing in zip(accounts, answer.standings, strict=True):
            account.stands(standing)
        self._ahead_us = answer.now_us - (began_us + self._clock.now_us()) // 2

    def _overdraw(self, accounts: Sequence[SharedAccount], asked: Amount) -> None:
        """Let the node have what a call needs. The store learns of it when it can be asked again."""
        self._overdrawn = True
        now_us = self.now_us()
        for account in accounts:
            needs = account.short_of(asked, now_us)
            if needs is not None:
                account.granted[account.scope.slot(now_us)] = needs

    async def _tend(self) -> None:
        now_us = self.now_us()
        in_use = [account for account in self._accounts if now_us - account.asked_us < FORGET_US]
        if self._overdrawn:
            await self._confess()
        async with self._asking:
            await self._make_sure()
        wanted = await self._look(in_use) if in_use else {}
        for account in in_use:
            account.recently = (0, 0)
        await self._give_back(wanted)

    async def _look(self, accounts: Sequence[SharedAccount]) -> dict[SharedAccount, bool]:
        """Learn how accounts stand. Returns where somebody else was refused a moment ago."""
        asked = _in_order(accounts)
        if not asked:
            return {}
        async with self._asking:
            await self._make_sure()
            began = self._clock.now_us()
            answer = await self._tables.look(self._node, [account.scope for account in asked])
            self._take_in(asked, answer, began)
        return dict(zip(asked, answer.wanted, strict=True))

    async def _give_back(self, wanted: dict[SharedAccount, bool]) -> None:
        async with self._asking:
            now_us = self.now_us()
            slices: _Slices = []
            for account in _in_order(self._accounts):
                for slot, size in account.idle(now_us, IDLE_US, wanted=wanted.get(account, False)):
                    account.granted[slot] = size
                    slices.append((account, slot))
            if slices:
                self._number += 1
                self._unsure.update(slices)
                sizes = [(account.scope, slot, account.granted[slot]) for account, slot in slices]
                await self._tables.give_back(self._node, self._number, sizes)
                self._unsure.difference_update(slices)

    async def _confess(self) -> None:
        """Have the store know what was admitted without it."""
        async with self._asking:
            slices = [(account, slot) for account in _in_order(self._accounts) for slot in account.granted]
            await self._grant(
                lambda now_us: slices,
                lambda account, slot: Want(account.scope, slot, account.used(slot), forced=True),
            )
            self._overdrawn = False

    def _scope_of(self, budget: str, value: str) -> Scope | None:
        known = self._named.get(budget)
        return None if known is None else Scope(known, value)


def _in_order(accounts: Sequence[Account]) -> list[SharedAccount]:
    """Accounts in the order in which everybody locks them."""
    shared = [account for account in accounts if isinstance(account, SharedAccount)]
    return sorted(shared, key=lambda account: by_name(account.scope))

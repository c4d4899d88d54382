"""Budgets that all nodes share: `BudgetSlices` and `Ledger` of production, and a model of the shared rows.

Their coroutines wait only for the shared rows. The simulation runs them by hand, one at a time on each node, so
that a statement takes time and a host may be stopped or die in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import TypeAlias, cast

from callboard.bus import Clock, StoreUnavailable
from callboard.engine import Budget
from callboard.engine.budgets.budget import Payer
from callboard.engine.budgets.ledger import Account, Amount, Ledger
from callboard.engine.nodes.budgets import BudgetSlices, Scope
from callboard.tracestore.nodes import AccountScope, Allotment, Answer, LedgerTables, SliceRequests, Slot
from tests.support.shared_tables import LedgerModel

from .kernel import BrokenPromise, Host, Kernel, Network, result

LIMIT = 10_000
BUDGET = Budget(max_cost_usd="0.00001", per="session")
SETTLE_SECONDS = 20.0
MOST_WAITING = 20


class Question:
    """A statement to the shared rows that a coroutine waits for."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def __await__(self) -> Generator[Question, object, object]:
        return (yield self)


Act: TypeAlias = Coroutine[object, object, None]


class Bank:
    """All accounts, and the amounts spent from each.

    Args:
    kernel: The kernel.
    network: The network.
    accounts: The number of accounts.
    """

    def __init__(self, kernel: Kernel, network: Network, accounts: int) -> None:
        self.kernel, self.network = kernel, network
        self.model = LedgerModel()
        self.values = [f"account_{number}" for number in range(accounts)]
        self.committed = dict.fromkeys(self.values, 0)
        """The spent amount of each account plus the maximum cost of its calls in progress."""
        self.admitted = self.refused = 0

    def commit(self, value: str, nano: int) -> None:
        """Add a reservation, or subtract the unspent part of one."""
        self.committed[value] += nano
        if self.committed[value] > LIMIT:
            raise BrokenPromise(f"{self.committed[value]} nano-USD of {LIMIT} are spent of {value}")

    def check(self) -> None:
        """Check that the shared rows include all spent and reserved amounts."""
        self.model.now = self.kernel.now
        for value, nano in self.committed.items():
            counted = self.model.counted(Scope(BUDGET, value))[0]
            if not nano <= counted <= LIMIT:
                raise BrokenPromise(f"{nano} nano-USD of {value} are committed, and {counted} count")


class Tables:
    """The shared rows, as a host reads and writes them."""

    def __init__(self, bank: Bank) -> None:
        self._model = bank.model
        self._kernel = bank.kernel

    async def grant(self, node: str, number: int, wants: SliceRequests) -> Answer:
        return cast("Answer", await self._ask(lambda: self._model.grant(node, number, wants)))

    async def give_back(
        self, node: str, number: int, slices: Sequence[tuple[AccountScope, Slot, Allotment]]
    ) -> None:
        await self._ask(lambda: self._model.give_back(node, number, slices))

    async def look(self, node: str, scopes: Sequence[AccountScope]) -> Answer:
        return cast("Answer", await self._ask(lambda: self._model.look(node, scopes)))

    def _ask(self, work: Callable[[], Coroutine[object, None, object]]) -> Question:
        def carry_out() -> object:
            self._model.now = self._kernel.now
            return result(work())

        return Question(carry_out)


class Purse:
    """The budget slices of one host.

    Args:
    bank: The accounts.
    host: The host.
    """

    def __init__(self, bank: Bank, host: Host) -> None:
        self._bank, self._host = bank, host
        self._kernel = bank.kernel
        self._calls: dict[str, tuple[str, int]] = {}
        self._spent: dict[str, int] = {}
        self._count = 0
        self._act: Act | None = None
        mine = max(1, len(bank.values) // 50)
        self._values = [bank.kernel.random.choice(bank.values) for _ in range(mine)]

    def begin(self) -> None:
        """Start a new process. The amounts that the process before spent appear in the trace later."""
        bank, host = self._bank, self._host
        if host.lives > 1:
            before = f"run_{host.number}_{host.lives - 1}"
            self._kernel.after(self._kernel.random.uniform(1, 60), partial(self._bury, before, self._left()))
        self.close()
        self._calls, self._spent = {}, {}
        tables = cast("LedgerTables", Tables(bank))
        self._slices = BudgetSlices(tables, host.run_id, [BUDGET], cast("Clock", host), "refuse")
        self._ledger = Ledger([BUDGET], self._slices.account)
        self._waiting: deque[tuple[Callable[[], Act], Callable[[bool], None]]] = deque()
        self._is_busy = False

    def call(self, value: str | None = None, tries: int = 4) -> None:
        """Make a call on one of this host's accounts."""
        value = value or self._kernel.random.choice(self._values)
        if len(self._waiting) > MOST_WAITING:
            return
        payer, amount = Payer("p:m", session_id=value), Amount(self._kernel.random.randint(1, LIMIT // 20))
        accounts = self._ledger.accounts(payer)

        def secured(waits: bool) -> None:
            if waits and tries > 1:
                self._host.soon(0.5, lambda: self.call(value, tries - 1))
                return
            self._reserve(payer, amount, accounts)

        self._do(lambda: self._slices.secure(accounts, amount), secured)

    def close(self) -> None:
        """Close the coroutine in progress."""
        if self._act is not None:
            self._act.close()
            self._act = None

    def tend(self) -> None:
        """Check the slices, and return unused amounts."""
        self._do(self._slices._tend, lambda _: None)

    # -- Calls

    def _reserve(self, payer: Payer, amount: Amount, accounts: Sequence[Account]) -> None:
        self._count += 1
        name, value = f"call_{self._count}", payer.session_id
        if self._ledger.reserve(name, payer, amount, self._slices.now_us()):
            self._bank.refused += 1
            return
        self._slices.reserved(accounts, amount)
        self._bank.admitted += 1
        self._calls[name] = value, amount.money
        self._bank.commit(value, amount.money)
        self._host.soon(self._kernel.random.uniform(0.1, 20), partial(self._over, name))

    def _over(self, name: str) -> None:
        value, most = self._calls.pop(name)
        nano = int(most * self._kernel.random.choice((0, 0.1, 0.5, 1)))
        self._ledger.settle(name, Amount(nano))
        self._bank.commit(value, nano - most)
        self._spent[value] = self._spent.get(value, 0) + nano

    def _left(self) -> dict[str, int]:
        """The amounts that the trace will have for this process. Calls in progress count with their maximum."""
        spent = dict(self._spent)
        for value, nano in self._calls.values():
            spent[value] = spent.get(value, 0) + nano
        return spent

    def _bury(self, run_id: str, spent: dict[str, int]) -> None:
        model = self._bank.model
        model.now = self._kernel.now
        for value, nano in spent.items():
            model.trace.append((run_id, value, round(self._kernel.now * 1e6), nano, 0))
        model.dead.add(run_id)

    # -- Coroutines, driven by hand

    def _do(self, make: Callable[[], Act], then: Callable[[bool], None]) -> None:
        self._waiting.append((make, then))
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            make, then = self._waiting.popleft()
            self._act = make()
            self._drive(self._act, then, lambda act: act.send(None))

    def _drive(self, act: Act, then: Callable[[bool], None], step: Callable[[Act], object]) -> None:
        """Run a coroutine until it waits for the shared rows or for time. Then others may run first."""
        waits = False
        try:
            asked = step(act)
            while asked is None:  # anyio lets other tasks run
                asked = act.send(None)
            if isinstance(asked, Question):
                self._bank.network.ask(
                    self._host,
                    asked.work,
                    lambda answer: self._drive(act, then, lambda it: it.send(answer)),
                    lambda: self._drive(act, then, lambda it: it.throw(StoreUnavailable("no answer"))),
                )
                return
            act.close()
            waits = True
        except StopIteration:
            pass
        except StoreUnavailable:
            waits = False
        then(waits)
        self._next()

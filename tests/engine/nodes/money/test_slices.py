"""Nodes that share budgets never spend more than the limit, for all faults of nodes and statements."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callboard.bus import Bus, NodeLimitsChanged, StoreUnavailable
from callboard.engine import Budget
from callboard.engine.budgets.budget import Payer
from callboard.engine.budgets.ledger import Amount, Ledger
from callboard.engine.nodes.budgets import BudgetSlices, Scope
from callboard.engine.nodes.node import RateLimitShares
from callboard.engine.routing.rate_limits import AsyncRateLimiter, RateLimitLease
from callboard.engine.routing.rate_slots import RateLimiter
from callboard.tracestore.nodes import AccountScope, Allotment, Answer, SliceRequests, Slot

from ....support.shared_tables import LedgerModel
from ....support.virtual_time import FakeClock, run_virtual, runs_on

anyio_backend = runs_on("virtual-asyncio")
LIMIT = 1000
BUDGET = Budget(max_cost_usd="0.000001")
SCOPE = Scope(BUDGET, "")
PAYER = Payer("s:m")


class Clock:
    """A node's clock, which can be wrong by hours."""

    def __init__(self, model: LedgerModel, wrong_us: int) -> None:
        self.model = model
        self.wrong_us = wrong_us

    def now_us(self) -> int:
        return round(self.model.now * 1e6) + self.wrong_us


class Flaky:
    """The rows behind a network that loses requests or answers."""

    def __init__(self, model: LedgerModel) -> None:
        self.model = model
        self.lose: str | None = None
        self.late: tuple[str, int, Sequence[tuple[AccountScope, Slot, Allotment]]] | None = None
        """A statement that arrives late."""

    async def grant(self, node: str, number: int, wants: SliceRequests) -> Answer:
        self._ask()
        answer = await self.model.grant(node, number, wants)
        if self.lose == "call":
            await anyio.sleep_forever()
        self._answer()
        return answer

    async def give_back(
        self, node: str, number: int, slices: Sequence[tuple[AccountScope, Slot, Allotment]]
    ) -> None:
        self._ask()
        if self.lose == "late":
            self.late = node, number, slices
            raise StoreUnavailable("its maximum cost is unknown")
        await self.model.give_back(node, number, slices)
        self._answer()

    async def look(self, node: str, scopes: Sequence[AccountScope]) -> Answer:
        self._ask()
        return await self.model.look(node, scopes)

    async def settle(self, node: str, scopes: Sequence[AccountScope]) -> None:
        await self.model.settle(node, scopes)

    def _ask(self) -> None:
        if self.lose == "question":
            raise StoreUnavailable("the question is lost")

    def _answer(self) -> None:
        if self.lose == "answer":
            raise StoreUnavailable("the answer is lost")


class Node:
    """A node with a ledger of its own, and its calls in progress."""

    def __init__(self, model: LedgerModel, name: str, wrong_us: int, budget: Budget = BUDGET) -> None:
        self.name = name
        self.tables = Flaky(model)
        self.slices = BudgetSlices(self.tables, name, [budget], Clock(model, wrong_us), "refuse")  # type: ignore[arg-type]
        self.ledger = Ledger([budget], self.slices.account)
        self.calls: list[tuple[str, int]] = []
        self.spent = 0
        self.count = 0

    async def reserve(self, nano: int) -> bool:
        asked, accounts = Amount(nano), self.ledger.accounts(PAYER)
        with contextlib.suppress(StoreUnavailable):
            await self.slices.secure(accounts, asked)
        name = f"{self.name}/{self.count}"
        if self.ledger.reserve(name, PAYER, asked, self.slices.now_us()):
            return False
        self.slices.reserved(accounts, asked)
        self.count += 1
        self.calls.append((name, nano))
        return True

    def settle(self, part: float) -> None:
        if self.calls:
            name, nano = self.calls.pop(0)
            self.spent += int(nano * part)
            self.ledger.settle(name, Amount(int(nano * part)))

    async def tend(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self.slices._tend()

    @property
    def committed(self) -> int:
        """The spend of the node, plus the most that its calls in progress can cost."""
        return self.spent + sum(nano for _, nano in self.calls)


ACTS = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 2), st.integers(1, 400)),
    st.tuples(st.just("settle"), st.integers(0, 2), st.sampled_from([0.0, 0.3, 1.0])),
    st.tuples(st.just("tend"), st.integers(0, 2), st.none()),
    st.tuples(st.just("lose"), st.integers(0, 2), st.sampled_from([None, "question", "answer"])),
    st.tuples(st.just("pass"), st.just(0), st.sampled_from([0.5, 3.0, 100.0])),
    st.tuples(st.just("die"), st.integers(0, 2), st.none()),
)


@settings(max_examples=150)
@given(st.lists(ACTS, max_size=60), st.lists(st.integers(-2, 2), min_size=3, max_size=3))
@example([("lose", 1, "answer"), ("reserve", 1, 100)], [0, 0, 0])
def test_all_nodes_together_never_exceed_the_limit(acts: list[tuple[str, int, object]], hours: list[int]) -> None:
    """The test draws lost requests and answers, wrong clocks and dead nodes. No part of the limit is lost
    forever.
    """

    async def story() -> None:
        model = LedgerModel()
        nodes = [Node(model, f"run_{number}", hour * 3_600_000_000) for number, hour in enumerate(hours)]
        gone: list[Node] = []
        for act, which, what in acts:
            node = nodes[which]
            match act:
                case "reserve":
                    assert isinstance(what, int)
                    await node.reserve(what)
                case "settle":
                    assert isinstance(what, float)
                    node.settle(what)
                case "tend":
                    await node.tend()
                case "lose":
                    assert what is None or isinstance(what, str)
                    node.tables.lose = what
                case "pass":
                    assert isinstance(what, float)
                    model.now += what
                case _:
                    gone.append(node)
                    nodes[which] = Node(model, f"{node.name}x", node.slices._clock.wrong_us)  # type: ignore[attr-defined]
            together = sum(each.committed for each in (*nodes, *gone))
            assert together <= LIMIT, (act, together)
            assert together <= model.counted(SCOPE)[0], "the spent amount must be counted"
        await everything_ends(model, nodes, gone)

    async def everything_ends(model: LedgerModel, nodes: list[Node], gone: list[Node]) -> None:
        for node in gone:  # The traces of dead nodes arrive, and their calls in progress count in full.
            model.trace.append((node.name, "", 0, node.committed, 0))
            model.dead.add(node.name)
        for node in nodes:
            node.tables.lose = None
            while node.calls:
                node.settle(0.0)
        model.now += 100
        await model.settle_dead(lambda budget, value: SCOPE)
        for node in nodes:
            await node.tend()
        spent = sum(node.committed for node in (*nodes, *gone))
        left = LIMIT - spent
        if left:
            assert await nodes[0].reserve(left), "the unspent amount must be available"

    run_virtual(story)


async def test_an_idle_slice_is_given_back_when_another_node_needs_it() -> None:
    """The slice is given back at the next check, although it was used just before."""
    model = LedgerModel()
    a, b = Node(model, "run_a", 0), Node(model, "run_b", 0)
    for _ in range(3):
        assert await a.reserve(10)
    for _ in range(3):
        a.settle(0.1)
    assert model.counted(SCOPE)[0] >= 30, "the slice is larger than the spend"
    assert not await b.reserve(980)
    await a.tend()
    assert await b.reserve(980)


async def test_a_node_sends_no_request_while_its_slice_has_room() -> None:
    model = LedgerModel()
    node = Node(model, "run_a", 0)
    for _ in range(4):
        assert await node.reserve(10)
    asked = node.slices._number
    assert await node.reserve(10)
    assert node.slices._number == asked


@pytest.mark.parametrize("lost", ["answer", "call"])
async def test_a_slice_that_the_node_never_received_is_given_back(lost: str) -> None:
    model = LedgerModel()
    a, b = Node(model, "run_a", 0), Node(model, "run_b", 0)
    a.tables.lose = lost
    with anyio.move_on_after(1):
        assert not await a.reserve(100)
    assert model.counted(SCOPE)[0] == 100
    a.tables.lose = None
    await a.tend()
    assert await b.reserve(LIMIT)


async def test_a_slice_is_given_back_when_the_store_is_available_again() -> None:
    model = LedgerModel()
    a, b = Node(model, "run_a", 0), Node(model, "run_b", 0)
    assert await a.reserve(100)
    a.settle(0.0)
    a.tables.lose = "question"
    for _ in range(3):
        model.now += 40
        await a.tend()
    a.tables.lose = None
    await a.tend()
    assert await b.reserve(LIMIT)


async def test_a_late_statement_takes_nothing_that_the_node_uses() -> None:
    """If the answer to `give_back` is lost, the node settles its state before its next use of a slice."""
    model = LedgerModel()
    a, b = Node(model, "run_a", 0), Node(model, "run_b", 0)
    assert await a.reserve(600)
    a.settle(0.0)
    model.now += 3
    a.tables.lose = "late"
    await a.tend()
    a.tables.lose = None
    await a.slices.refresh()
    late = a.tables.late
    assert late is not None
    await model.give_back(*late)
    mine = await a.reserve(600)
    reserved = await b.reserve(600)
    assert mine
    assert not reserved


async def test_a_returned_slice_is_not_used() -> None:
    """The node requests a new slice, and another node can get the old one."""
    model = LedgerModel()
    a, b = Node(model, "run_a", 0), Node(model, "run_b", 0)
    for _ in range(2):
        assert await a.reserve(10)
        a.settle(0.0)
    model.now += 3
    await a.tend()
    assert model.counted(SCOPE)[0] == 0
    assert await b.reserve(LIMIT)
    assert not await a.reserve(1)


@pytest.mark.parametrize("hours", [-2, 2])
async def test_windows_follow_the_stores_clock(hours: int) -> None:
    """A node with a wrong clock counts in the same hour as all others."""
    budget = Budget(max_cost_usd="0.000001", window="hour")
    model = LedgerModel()
    model.now = 10 * 3600.0 + 1800
    right, wrong = Node(model, "run_a", 0, budget), Node(model, "run_b", hours * 3_600_000_000, budget)
    assert await wrong.reserve(600)
    assert not await right.reserve(600)
    assert await right.reserve(400)
    assert not await wrong.reserve(1)
    model.now += 3600
    assert await right.reserve(600)
    assert not await wrong.reserve(600)
    await right.tend()
    assert await wrong.reserve(400)


# Rate limits that nodes share: together they never exceed the limit, and each gets the share that it needs.


class Rows(LedgerModel):
    """The rows by the loop's time. The rows can be unavailable."""

    gone = False
    grants = 0

    @property
    def now(self) -> float:  # type: ignore[override]
        return anyio.current_time()

    @now.setter
    def now(self, value: float) -> None:
        pass

    async def grant(self, node: str, number: int, wants: SliceRequests) -> Answer:
        if self.gone:
            raise StoreUnavailable("gone")
        await anyio.sleep(0.002)
        self.grants += 1
        return await super().grant(node, number, wants)


class LimitNode:
    """A node with one rate limiter, and the times at which its requests were sent."""

    def __init__(self, name: str, rows: Rows, limit: int) -> None:
        self.bus = Bus(clock=FakeClock())
        self.shares = RateLimitShares(rows, name, self.bus, FakeClock(), self._living)
        self.live = AsyncRateLimiter("s", "", RateLimiter(limit, None))
        self.shares.join(self.live)
        self.sent: list[float] = []

    async def _living(self) -> int:
        return 2

    async def request(self) -> None:
        lease = RateLimitLease(self.live, "s:m", 0, (10, 10), None)
        if not lease.ask():
            await lease.wait(1e9)
        assert lease.send()
        self.sent.append(anyio.current_time())
        lease.end(None, None)


@asynccontextmanager
async def nodes(rows: Rows, count: int, limit: int) -> AsyncIterator[list[LimitNode]]:
    made = [LimitNode(f"run_{number}", rows, limit) for number in range(count)]
    async with anyio.create_task_group() as group:
        for node in made:
            group.start_soon(node.shares.run)
        yield made
        group.cancel_scope.cancel()


def most_in_a_minute(sent: list[float]) -> int:
    ordered = sorted(sent)
    return max((sum(at <= each < at + 60 for each in ordered) for at in ordered), default=0)


async def test_requests_of_all_nodes_together_stay_within_the_limit_of_a_minute() -> None:
    """The requests may come from any of the nodes. The limit is used fully."""
    rows = Rows()
    async with nodes(rows, 3, 10) as (a, b, c):
        await asyncio.gather(*(node.request() for node in [a] * 14 + [b] * 5 + [c]))
        sent = [*a.sent, *b.sent, *c.sent]
    assert len(sent) == 20
    assert most_in_a_minute(sent) <= 10
    assert max(sent) - min(sent) < 140, "twenty requests take two minutes at ten a minute"


async def test_one_node_can_use_the_unused_share_of_another() -> None:
    rows = Rows()
    async with nodes(rows, 2, 10) as (a, b):
        began = anyio.current_time()
        await asyncio.gather(*(a.request() for _ in range(10)))
        assert anyio.current_time() - began < 1, "the only node with requests has the whole limit"
        await anyio.sleep(61)
        began = anyio.current_time()
        await asyncio.gather(*(b.request() for _ in range(10)))
        assert anyio.current_time() - began < 3
    assert most_in_a_minute([*a.sent, *b.sent]) <= 10


async def test_the_share_of_a_node_that_died_is_free_again() -> None:
    """The share is free after a minute and a half. Before, the provider can still count its requests."""
    rows = Rows()
    async with nodes(rows, 1, 10) as (a,):
        await asyncio.gather(*(a.request() for _ in range(10)))
    async with nodes(rows, 1, 10) as (b,):
        rows.dead.clear()
        b.shares._node = "run_b"
        began = anyio.current_time()
        before = rows.grants
        await b.request()
        assert 60 <= anyio.current_time() - began <= 95
        assert rows.grants - before < 300, "a waiting request causes few requests to the store"


async def test_without_the_store_each_node_uses_an_even_part() -> None:
    """An event reports the change. When the store is back, the shares are the same as before."""
    rows = Rows()
    async with nodes(rows, 1, 10) as (a,):
        events = a.bus.subscribe("nodes.limits_changed")
        await a.request()
        await anyio.sleep(20)
        rows.gone = True
        await asyncio.gather(*(a.request() for _ in range(4)))
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(a.request)
            await anyio.sleep(5)
            assert len(a.sent) == 5, "each of two nodes has half of the limit"
            rows.gone = False
        assert anyio.current_time() - began < 10
        published = [each.data for each in events.take()]
    assert published == [
        NodeLimitsChanged(current="divided", nodes=2, reason="gone"),
        NodeLimitsChanged(current="shared", nodes=2),
    ]

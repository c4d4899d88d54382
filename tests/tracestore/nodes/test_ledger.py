"""The remaining amounts of shared budgets: the same cases on the model of the rows and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from callboard.engine import Budget
from callboard.engine.nodes.budgets import Scope
from callboard.tracestore import PostgresStore
from callboard.tracestore.nodes import Allotment, LedgerTables, SliceRequest, SliceRequests
from callboard.tracestore.postgres.ledger import PostgresLedger
from callboard.tracestore.postgres.nodes import SharedDatabase
from tests.support.shared_tables import LedgerModel
from tests.tracestore.trace_making import Maker

MONEY = Scope(Budget(max_cost_usd="0.000001"), "")  # 1,000 nano-USD
TOKENS = Scope(Budget(max_tokens=100, per="model"), "s:m")


@pytest.fixture(params=["model", "postgres"])
async def ledger(request: Any) -> AsyncIterator[LedgerTables]:
    if request.param == "model":
        yield LedgerModel()
        return
    database = SharedDatabase(request.getfixturevalue("postgres_dsn"))
    yield PostgresLedger(database)
    await database.close()


def wanting(*asked: tuple[Scope, Allotment], more: Allotment = (0, 0)) -> SliceRequests:
    return lambda now_us: [SliceRequest(scope, scope.slot(now_us), up_to, more) for scope, up_to in asked]


async def size(ledger: LedgerTables, node: str, *scopes: Scope) -> Sequence[Allotment]:
    return [standing.granted for standing in (await ledger.look(node, scopes)).balances]


async def test_slices_of_all_nodes_together_stay_within_the_limit(ledger: LedgerTables) -> None:
    """A request for more than the rest gets nothing. The other nodes are notified that a node needs more."""
    await ledger.grant("a", 1, wanting((MONEY, (600, 0))))
    answer = await ledger.grant("b", 1, wanting((MONEY, (500, 0))))
    assert (answer.balances[0].granted, answer.balances[0].others) == ((0, 0), (600, 0))
    await ledger.grant("b", 2, wanting((MONEY, (400, 0))))
    assert await size(ledger, "b", MONEY) == [(400, 0)]
    assert (await ledger.look("a", [MONEY, TOKENS])).wanted == [True, False]
    await ledger.grant("a", 2, wanting((MONEY, (601, 0))))
    assert await size(ledger, "a", MONEY) == [(600, 0)], "the limit holds to the last nano-USD"


async def test_a_call_gets_slices_of_all_accounts_or_of_none(ledger: LedgerTables) -> None:
    """Otherwise an amount would stay unused in one account, because another account is full."""
    await ledger.grant("a", 1, wanting((TOKENS, (0, 90))))
    await ledger.grant("b", 1, wanting((MONEY, (10, 0)), (TOKENS, (0, 20))))
    assert await size(ledger, "b", MONEY, TOKENS) == [(0, 0), (0, 0)]
    await ledger.grant("b", 2, wanting((MONEY, (10, 0)), (TOKENS, (0, 10))))
    assert await size(ledger, "b", MONEY, TOKENS) == [(10, 0), (0, 10)]


async def test_a_node_gets_at_most_a_quarter_of_the_rest_as_extra(ledger: LedgerTables) -> None:
    """A node gets at most the extra that it requests, and no extra if little is left."""
    await ledger.grant("a", 1, wanting((MONEY, (10, 0)), more=(50, 0)))
    assert await size(ledger, "a", MONEY) == [(60, 0)]
    await ledger.grant("b", 1, wanting((MONEY, (20, 0)), more=(500, 0)))
    assert await size(ledger, "b", MONEY) == [(20 + (940 - 16 * 20) // 4, 0)]
    await ledger.grant("c", 1, wanting((MONEY, (50, 0)), more=(500, 0)))
    assert await size(ledger, "c", MONEY) == [(50, 0)]


async def test_a_repeated_request_adds_nothing(ledger: LedgerTables) -> None:
    """The reply to the first request may be lost. A request states the total size of the slice, so a repetition is
    safe.
    """
    for _ in range(2):
        await ledger.grant("a", 1, wanting((MONEY, (300, 0))))
    await ledger.grant("a", 2, wanting((MONEY, (300, 0))))
    assert await size(ledger, "a", MONEY) == [(300, 0)]


async def test_late_requests_change_nothing(ledger: LedgerTables) -> None:
    """A grant or a return that is older than the node's last request is ignored."""
    slot = (await ledger.grant("a", 3, wanting((MONEY, (300, 0))))).balances[0].slot
    await ledger.give_back("a", 2, [(MONEY, slot, (0, 0))])
    assert await size(ledger, "a", MONEY) == [(300, 0)]
    await ledger.give_back("a", 4, [(MONEY, slot, (900, 0))])
    assert await size(ledger, "a", MONEY) == [(300, 0)], "a return never increases a slice"
    await ledger.give_back("a", 5, [(MONEY, slot, (100, 0))])
    await ledger.grant("a", 4, wanting((MONEY, (900, 0))))
    assert await size(ledger, "a", MONEY) == [(100, 0)]


async def test_forced_amounts_count_beyond_the_limit(ledger: LedgerTables) -> None:
    """Amounts that are already spent are forced into the account. Then no node gets more."""
    await ledger.grant("a", 1, wanting((MONEY, (900, 0))))

    def forced(now_us: int) -> list[SliceRequest]:
        return [SliceRequest(MONEY, MONEY.slot(now_us), (500, 0), forced=True)]

    await ledger.grant("b", 1, forced)
    assert await size(ledger, "b", MONEY) == [(500, 0)]
    answer = await ledger.grant("a", 2, wanting((MONEY, (901, 0))))
    assert answer.balances[0].granted == (900, 0)


async def test_different_budgets_have_different_accounts(ledger: LedgerTables) -> None:
    others = [
        Budget(max_cost_usd="0.000002"),
        Budget(max_cost_usd="0.000001", window="day"),
        Budget(max_cost_usd="0.000001", window=timedelta(days=90)),  # its slots don't end during the test
        Budget(max_cost_usd="0.000001", per="tag:tenant"),
        Budget(max_cost_usd="0.000001", per="tag:tenant", of="acme"),
    ]
    await ledger.grant("a", 1, wanting((MONEY, (900, 0))))
    for number, budget in enumerate(others, 2):
        await ledger.grant("a", number, wanting((Scope(budget, ""), (900, 0))))
    scopes = [Scope(budget, "") for budget in others]
    assert await size(ledger, "a", *scopes) == [(900, 0)] * len(others)


async def test_a_dead_node_s_slice_is_replaced_by_the_cost_of_its_calls(postgres_dsn: str) -> None:
    """The slice counts until all calls of the node are in the trace. Then the cost of these calls counts."""
    earlier, dead = Maker("run_earlier"), Maker("run_dead")
    database = SharedDatabase(postgres_dsn)
    ledger = PostgresLedger(database)
    scope = Scope(Budget(max_cost_usd="0.000010"), "")
    try:
        async with PostgresStore(postgres_dsn) as store:
            await store.write([earlier.started("a"), earlier.completed("a")])  # 1,234 nano-USD
            answer = await ledger.grant("run_dead", 1, wanting((scope, (8000, 0))))
            assert (answer.balances[0].spent, answer.balances[0].granted) == ((1234, 110), (8000, 0))
            await store.write([dead.started("b"), dead.completed("b")])
            assert await ledger.settle_dead(lambda budget, value: scope) == 0
            assert (await ledger.look("run_new", [scope])).balances[0].others == (8000, 0)
            await database.statement("UPDATE runs SET ended_us = 1 WHERE run_id = 'run_dead'")
            assert await ledger.settle_dead(lambda budget, value: None) == 0, "this node does not have the budget"
            assert await ledger.settle_dead(lambda budget, value: scope) == 1
            (after,) = (await ledger.look("run_new", [scope])).balances
            assert (after.spent, after.others) == ((2468, 220), (0, 0))
    finally:
        await database.close()

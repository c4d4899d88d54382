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
    """Whoever asks for more than is left gets nothing, and the others learn that somebody lacks it."""
    await ledger.grant("a", 1, wanting((MONEY, (600, 0))))
    answer = await ledger.grant("b", 1, wanting((MONEY, (500, 0))))
    assert (answer.balances[0].granted, answer.balances[0].others) == ((0, 0), (600, 0))
    await ledger.grant("b", 2, wanting((MONEY, (400, 0))))
    assert await size(ledger, "b", MONEY) == [(400, 0)]
    assert (await ledger.look("a", [MONEY, TOKENS])).wanted == [True, False]
    await ledger.grant("a", 2, wanting((MONEY, (601, 0))))
    assert await size(ledger, "a", MONEY) == [(600, 0)], "to the last nano-USD"


async def test_a_call_gets_its_slices_in_all_accounts_or_in_none(ledger: LedgerTables) -> None:
    """So that nothing lies idle in one because another has no room."""
    await ledger.grant("a", 1, wanting((TOKENS, (0, 90))))
    await ledger.grant("b", 1, wanting((MONEY, (10, 0)), (TOKENS, (0, 20))))
    assert await size(ledger, "b", MONEY, TOKENS) == [(0, 0), (0, 0)]
    await ledger.grant("b", 2, wanting((MONEY, (10, 0)), (TOKENS, (0, 10))))
    assert await size(ledger, "b", MONEY, TOKENS) == [(10, 0), (0, 10)]


async def test_a_node_gets_at_most_a_quarter_of_what_is_left_besides(ledger: LedgerTables) -> None:
    """Never more than it would use, and nothing where calls are to be admitted one by one."""
    await ledger.grant("a", 1, wanting((MONEY, (10, 0)), more=(50, 0)))
    assert await size(ledger, "a", MONEY) == [(60, 0)]
    await ledger.grant("b", 1, wanting((MONEY, (20, 0)), more=(500, 0)))
    assert await size(ledger, "b", MONEY) == [(20 + (940 - 16 * 20) // 4, 0)]
    await ledger.grant("c", 1, wanting((MONEY, (50, 0)), more=(500, 0)))
    assert await size(ledger, "c", MONEY) == [(50, 0)]


async def test_a_question_that_is_asked_twice_is_answered_once(ledger: LedgerTables) -> None:
    """The answer may have been lost; a slice is said by its size, and not by what is added."""
    for _ in range(2):
        await ledger.grant("a", 1, wanting((MONEY, (300, 0))))
    await ledger.grant("a", 2, wanting((MONEY, (300, 0))))
    assert await size(ledger, "a", MONEY) == [(300, 0)]


async def test_what_comes_late_changes_nothing(ledger: LedgerTables) -> None:
    """Neither a slice nor its return, if the node has said more since; no return makes a slice larger."""
    slot = (await ledger.grant("a", 3, wanting((MONEY, (300, 0))))).balances[0].slot
    await ledger.give_back("a", 2, [(MONEY, slot, (0, 0))])
    assert await size(ledger, "a", MONEY) == [(300, 0)]
    await ledger.give_back("a", 4, [(MONEY, slot, (900, 0))])
    assert await size(ledger, "a", MONEY) == [(300, 0)], "whatever the node thinks that it has"
    await ledger.give_back("a", 5, [(MONEY, slot, (100, 0))])
    await ledger.grant("a", 4, wanting((MONEY, (900, 0))))
    assert await size(ledger, "a", MONEY) == [(100, 0)]


async def test_what_was_admitted_without_the_store_counts_beyond_the_limit(ledger: LedgerTables) -> None:
    """It is spent, whatever the limit says; then there is nothing left for anybody."""
    await ledger.grant("a", 1, wanting((MONEY, (900, 0))))

    def forced(now_us: int) -> list[SliceRequest]:
        return [SliceRequest(MONEY, MONEY.slot(now_us), (500, 0), forced=True)]

    await ledger.grant("b", 1, forced)
    assert await size(ledger, "b", MONEY) == [(500, 0)]
    answer = await ledger.grant("a", 2, wanting((MONEY, (901, 0))))
    assert answer.balances[0].granted == (900, 0)


async def test_budgets_that_differ_have_accounts_of_their_own(ledger: LedgerTables) -> None:
    """By what they count, by their window, and by their limit."""
    others = [
        Budget(max_cost_usd="0.000002"),
        Budget(max_cost_usd="0.000001", window="day"),
        Budget(max_cost_usd="0.000001", window=timedelta(days=90)),  # whose slots don't end while this runs
        Budget(max_cost_usd="0.000001", per="tag:tenant"),
        Budget(max_cost_usd="0.000001", per="tag:tenant", of="acme"),
    ]
    await ledger.grant("a", 1, wanting((MONEY, (900, 0))))
    for number, budget in enumerate(others, 2):
        await ledger.grant("a", number, wanting((Scope(budget, ""), (900, 0))))
    scopes = [Scope(budget, "") for budget in others]
    assert await size(ledger, "a", *scopes) == [(900, 0)] * len(others)


async def test_an_account_begins_with_the_trace_and_a_dead_nodes_slice_becomes_it(postgres_dsn: str) -> None:
    """The slice counts until the node's calls are all in the trace; then what they did cost counts."""
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
            assert await ledger.settle_dead(lambda budget, value: None) == 0, "nobody here knows that budget"
            assert await ledger.settle_dead(lambda budget, value: scope) == 1
            (after,) = (await ledger.look("run_new", [scope])).balances
            assert (after.spent, after.others) == ((2468, 220), (0, 0))
    finally:
        await database.close()

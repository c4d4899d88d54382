"""Budgets of a cluster: the sum of the spend of its nodes."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from callboard.adapters import AdapterConfig, CanonicalRequest
from callboard.bus import StoreError
from callboard.engine import Budget, BudgetExceededError, Engine
from callboard.engine.cli import main
from callboard.tracestore import PostgresStore, PriceRow, PriceTable

from ....support.cluster_engines import node_engine, node_of
from ....support.engines import entry, serving
from ....support.postgres_server import own_server, why_not
from ....support.scripted import Say, ScriptedAdapter, scripted_type

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")
SENT = 65
"""The upper end of an estimate of 10 tokens."""
ONE = SENT * 1000 + 100 * 2000
"""The most that one message with 100 tokens of output can cost, in nano-USD."""
COSTS = 10 * 1000 + 5 * 2000
"""The actual cost of that message."""


async def a_moment() -> None:
    await anyio.sleep(0.5)


def node(name: str, dsn: str, folder: Path, budget: Budget, *replies: Say, **options: Any) -> Engine:
    return node_engine(name, dsn, folder, *replies, budgets=[budget], prices=TABLE, **options)


async def asked(engine: Engine, **options: Any) -> object:
    try:
        return await engine.generate("s:m", "Hi", max_output_tokens=100, **options)
    except (BudgetExceededError, StoreError) as error:
        return error


def made(ended: list[object]) -> int:
    return sum(not isinstance(each, Exception) for each in ended)


async def test_fifty_callers_on_three_nodes_share_a_budget_for_ten(postgres_dsn: str, tmp_path: Path) -> None:
    budget = Budget(max_tokens=10 * (SENT + 100))
    refused = asyncio.Event()
    slow = [Say("x", pause=refused.wait)] * 50
    async with (
        node("a", postgres_dsn, tmp_path, budget, *slow) as a,
        node("b", postgres_dsn, tmp_path, budget, *slow) as b,
        node("c", postgres_dsn, tmp_path, budget, *slow) as c,
    ):
        calls = [asyncio.create_task(asked((a, b, c)[number % 3])) for number in range(50)]
        for _ in range(40):
            await asyncio.wait([call for call in calls if not call.done()], return_when="FIRST_COMPLETED")
            if sum(call.done() for call in calls) >= 40:
                break
        assert made([call.result() for call in calls if call.done()]) == 0
        refused.set()
        assert made(list(await asyncio.gather(*calls))) == 10


async def test_the_spend_of_one_node_counts_on_all_nodes_and_later(postgres_dsn: str, tmp_path: Path) -> None:
    """The spend counts while the node runs, after its end, and on a node that starts later."""
    budget = Budget(max_cost_usd=Decimal(ONE + COSTS).scaleb(-9))
    async with node("a", postgres_dsn, tmp_path, budget, Say("x")) as a:
        async with node("b", postgres_dsn, tmp_path, budget, Say("x"), Say("x")) as b:
            assert made([await asked(a), await asked(b), await asked(b)]) == 2
            (state,) = await b.budgets()
            assert state.left_nano_usd == ONE + COSTS - 2 * COSTS
        (state,) = await a.budgets()
        assert state.left_nano_usd == ONE + COSTS - 2 * COSTS
    async with node("c", postgres_dsn, tmp_path, budget, Say("x")) as c:
        assert isinstance(await asked(c), BudgetExceededError)
        (state,) = await c.budgets()
        assert (state.spent.money, state.held.money) == (2 * COSTS, 0)


async def test_the_command_shows_all_slices(
    postgres_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command shows slices before any spend, and marks a node that is gone."""
    limit = f"{Decimal(9 * ONE).scaleb(-9):f}"
    started, held = asyncio.Event(), asyncio.Event()
    wanted = ("budget", "--store", postgres_dsn, "--max-cost-usd", limit, "--per", "tag:tenant")

    async def pause() -> None:
        started.set()
        await held.wait()

    async def shown(*options: str) -> str:
        assert await anyio.to_thread.run_sync(main, (*wanted, *options)) == 0
        return capsys.readouterr().out

    budget = Budget(max_cost_usd=limit, per="tag:tenant")
    async with node("a", postgres_dsn, tmp_path, budget, Say("x", pause=pause)) as a:
        call = asyncio.create_task(asked(a, tags={"tenant": "acme"}))
        shared = node_of(a).shared
        assert shared is not None
        # The store grants the slice before the call starts. A slow node can give its slice back.
        await started.wait()
        (row,) = map(json.loads, (await shown("--json")).splitlines())
        assert (row["value"], row["spent_nano_usd"]) == ("acme", 0)
        (slice_,) = row["slices"]
        assert (slice_["name"], slice_["lives"], slice_["nano_usd"]) == ("a", True, ONE)
        other = map(json.loads, (await shown("--window", "day", "--json")).splitlines())
        assert all(row["slices"] == [] for row in other), "another budget has no slice"
        await shared.statement(  # This is the row of a dead node. A live node would renew its lease.
            "INSERT INTO ledger_slices (account, slot_us, forgotten_us, node, nano, tokens, number)"
            " SELECT account, slot_us, forgotten_us, 'another', nano, tokens, number FROM ledger_slices"
        )
        assert "gone: counts until" in " ".join((await shown()).split())
        held.set()
        await call


async def test_a_call_waits_for_the_slice_of_another_node(postgres_dsn: str, tmp_path: Path) -> None:
    budget = Budget(max_cost_usd=Decimal(ONE + 2 * COSTS).scaleb(-9), when_full="wait")
    async with (
        node("a", postgres_dsn, tmp_path, budget, Say("x", pause=a_moment)) as a,
        node("b", postgres_dsn, tmp_path, budget, Say("x")) as b,
    ):
        with anyio.fail_after(15):
            assert made(list(await asyncio.gather(asked(a), asked(b)))) == 2


@pytest.mark.parametrize("without_store", ["refuse", "admit"])
async def test_without_the_shared_store_calls_are_refused_by_default(tmp_path: Path, without_store: str) -> None:
    """A call in progress continues. Admitted calls count when the store is back."""
    if (reason := why_not(own=True)) is not None:
        pytest.skip(reason)
    budget = Budget(max_tokens=3 * (SENT + 100))
    started, stopped = asyncio.Event(), asyncio.Event()

    async def until_it_is_stopped() -> None:
        started.set()
        await stopped.wait()

    replies = [Say("x", pause=until_it_is_stopped), *[Say("x")] * 40]
    with own_server() as server, server.database() as dsn:
        cluster = {"without_store": without_store}
        async with node("a", dsn, tmp_path, budget, *replies, cluster=cluster) as a:
            under_way = asyncio.create_task(asked(a))
            await started.wait()
            await asyncio.to_thread(server.stop, "immediate")
            while made([ended := await asked(a)]):
                pass  # The node still had a slice for these calls.
            if without_store == "refuse":
                assert isinstance(ended, StoreError)
            else:
                assert isinstance(ended, BudgetExceededError), "the node keeps the limit of its slice"
            stopped.set()
            assert made([await under_way]) == 1
            await asyncio.to_thread(server.start)
            used = [account.used(account.scope.slot(0)) for account in node_of(a).budgets._accounts]
            for _ in range(600):
                if await counted(dsn) == used:
                    break
                await anyio.sleep(0.1)
            assert await counted(dsn) == used


async def counted(dsn: str) -> list[tuple[int, int]]:
    """The slices in the store."""
    try:
        async with PostgresStore.open_readonly(dsn) as store:
            rows = (await store.sql("SELECT nano, tokens FROM ledger_slices")).rows
    except StoreError:
        return []
    return [(int(str(nano)), int(str(tokens))) for nano, tokens in rows]


# Configured rate limits of two engines that are nodes of one cluster.

LIMIT = 5


async def test_requests_of_two_engines_stay_within_a_declared_limit(postgres_dsn: str, tmp_path: Path) -> None:
    """Of eight requests, five are sent, because the shares from the store add up to the limit."""
    sent: list[str] = []
    all_sent = anyio.Event()

    def node(name: str) -> Engine:
        class Counting(ScriptedAdapter):
            def say(self, request: CanonicalRequest) -> Say:
                sent.append(name)
                if len(sent) == LIMIT:
                    all_sent.set()
                return super().say(request)

        replies = scripted_type(*[Say("x")] * 9, base=Counting)
        models = serving(s=entry("s", replies, AdapterConfig(requests_per_minute=LIMIT)))
        return node_engine(name, postgres_dsn, tmp_path, models=models)

    async with node("a") as a, node("b") as b, anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon((a, b)[number % 2].generate, "s:m", "Hi")
        with anyio.fail_after(30):
            await all_sent.wait()
        for engine in (a, b):
            shared = node_of(engine).shared
            ((granted,),) = await shared.statement("SELECT sum(nano) FROM ledger_slices")
            assert granted == LIMIT
            (provider,) = engine.statistics().providers
            assert [limit.limit for limit in provider.rate_limits] == [LIMIT]
        group.cancel_scope.cancel()
    assert len(sent) == LIMIT
    assert set(sent) == {"a", "b"}

"""Budgets that are added, changed and removed while the engine runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

from callboard.adapters import ServerError
from callboard.bus.errors import StoreError
from callboard.engine import Budget, BudgetExceededError, Engine
from callboard.engine.budgets.budgets import Counted

from ...support.cluster_engines import node_engine
from ...support.engines import running
from ...support.postgres_server import why_not
from ...support.scripted import Say
from ...support.virtual_time import runs_on
from .test_budgets import ONE, TABLE, attempts

anyio_backend = runs_on("asyncio")

ACME: dict[str, Any] = {"tags": {"client": "acme"}}
COSTS = 10 * 1000 + 5 * 2000
"""The cost of a call, in nano-USD."""


def room_for(calls: int, *, nano: int = 0, window: Any = "day") -> Budget:
    """A budget that has room for `number` of the most expensive calls, in addition to the spent amount."""
    return Budget(max_cost_usd=f"{(calls * ONE + nano) / 1e9:.9f}", per="tag:client", of="acme", window=window)


async def asked(engine: Engine, **options: Any) -> object:
    try:
        return await engine.generate("s:m", "Hi", max_output_tokens=100, **{**ACME, **options})
    except BudgetExceededError as error:
        return error


def made(ended: list[object]) -> int:
    return sum(not isinstance(each, Exception) for each in ended)


async def spent(engine: Engine) -> list[tuple[int, int]]:
    """The nano-USD spent and reserved, of each account."""
    return [(state.spent.money, state.held.money) for state in await engine.budgets()]


async def holds(engine: Engine, calls: int) -> bool:
    """Whether this number of calls is in progress."""
    return [state.held.money for state in await engine.budgets()] == [calls * ONE]


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    while not await is_so():
        await anyio.lowlevel.checkpoint()


async def test_calls_in_progress_count_in_a_budget_that_replaces_another() -> None:
    ends = asyncio.Event()
    async with running(*[Say("x", pause=ends.wait)] * 50, prices=TABLE) as (engine, _):
        await engine.change_budgets(add=[room_for(20)])
        first = [asyncio.create_task(asked(engine)) for _ in range(8)]
        await until(lambda: holds(engine, 8))
        await engine.change_budgets(add=[room_for(10)], remove=[room_for(20)])
        assert await spent(engine) == [(0, 8 * ONE)]
        more = [asyncio.create_task(asked(engine)) for _ in range(42)]
        refused = iter(asyncio.as_completed(more))
        for _ in range(40):
            assert isinstance(await next(refused), BudgetExceededError)
        ends.set()
        assert made(await asyncio.gather(*first, *more)) == 10
        assert await spent(engine) == [(10 * COSTS, 0)]


async def test_spend_before_a_budget_was_added_counts(tmp_path: Path) -> None:
    async with running(*[Say("x")] * 9, store=tmp_path / "trace.db", prices=TABLE) as (engine, _):
        for _ in range(3):
            await asked(engine)
        await asked(engine, tags={"client": "other"})
        await engine.change_budgets(add=[room_for(1, nano=3 * COSTS)])
        assert await spent(engine) == [(3 * COSTS, 0)]
        assert made([await asked(engine), await asked(engine)]) == 1
        await engine.change_budgets(add=[room_for(1, nano=4 * COSTS, window="month")], remove=[room_for(1)])
        assert made([await asked(engine)]) == 0  # The first budget is still in force.
        await engine.change_budgets(remove=[room_for(1, nano=3 * COSTS)])
        assert made([await asked(engine), await asked(engine)]) == 1


@pytest.mark.parametrize("is_in_sums", [False, True])
async def test_a_call_that_ends_while_the_trace_is_read_counts_once(tmp_path: Path, is_in_sums: bool) -> None:
    ends = asyncio.Event()
    async with running(Say("x", pause=ends.wait), store=tmp_path / "trace.db", prices=TABLE) as (engine, _):
        await engine.change_budgets(add=[room_for(5)])
        call = asyncio.create_task(asked(engine))
        await until(lambda: holds(engine, 1))
        load = engine._runtime.budgets._load

        async def slowly(budgets: Sequence[Budget], now_us: int) -> Counted:
            early = await load(budgets, now_us)
            ends.set()
            await call
            return await load(budgets, now_us) if is_in_sums else early

        engine._runtime.budgets._load = slowly
        await engine.change_budgets(add=[room_for(7)], remove=[room_for(5)])
        assert await spent(engine) == [(COSTS, 0)]


async def test_a_call_of_unknown_usage_counts_with_its_highest_cost_in_a_later_budget(tmp_path: Path) -> None:
    replies = Say(fails=ServerError("gone", retryable=False)), Say("x")
    async with running(*replies, store=tmp_path / "trace.db", prices=TABLE) as (engine, _):
        await engine.change_budgets(add=[room_for(5)])
        with pytest.raises(ServerError):
            await asked(engine)
        (before,) = await engine.budgets()
        await engine.change_budgets(add=[room_for(7)], remove=[room_for(5)])
        (after,) = await engine.budgets()
        assert (after.unknown, after.held, after.calls) == (before.unknown, before.held, before.calls)
        assert before.unknown.money == ONE


async def test_an_engines_own_budgets_stay(tmp_path: Path) -> None:
    """Adding or removing a budget of the engine has no effect, and its account stays."""
    budget = room_for(1)
    async with running(Say("x"), Say("y"), budgets=[budget], prices=TABLE) as (engine, _):
        await asked(engine)
        await engine.change_budgets(add=[budget], remove=[budget])
        await engine.change_budgets(remove=[budget, room_for(3)])
        assert [state.budget for state in await engine.budgets()] == [budget]
        assert await spent(engine) == [(COSTS, 0)]


async def test_a_trace_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    async with running(*[Say("x")] * 9, store=tmp_path / "trace.db", prices=TABLE) as (engine, _):
        await engine.change_budgets(add=[room_for(1)])

        async def broken(budgets: Sequence[Budget], now_us: int) -> Counted:
            raise StoreError("the disk is gone")

        engine._runtime.budgets._load = broken
        with pytest.raises(StoreError, match="the disk is gone"):
            await engine.change_budgets(add=[room_for(9)], remove=[room_for(1)])
        assert made(await attempts(3, lambda: asked(engine))) == 1
        assert [state.budget for state in await engine.budgets()] == [room_for(1)]


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_nodes_that_change_a_budget_in_turn_never_overspend(postgres_dsn: str, tmp_path: Path) -> None:
    """The spend of each node counts on every node."""

    def node(name: str) -> Engine:
        return node_engine(name, postgres_dsn, tmp_path, *[Say("x")] * 40, prices=TABLE)

    old, new = room_for(20), room_for(3, nano=6 * COSTS, window="month")
    async with node("a") as a, node("b") as b:
        for engine in (a, b):
            await engine.change_budgets(add=[old])
            assert made([await asked(engine) for _ in range(3)]) == 3
        await a.change_budgets(add=[new], remove=[old])
        assert made([await asked(b)]) == 1  # Node b still has the old budget.
        await b.change_budgets(add=[new], remove=[old])
        ended = await attempts(8, lambda: asked(a)) + await attempts(8, lambda: asked(b))
        assert made(ended) >= 1
        state = (await a.budgets())[0]
        assert state.spent.money + state.held.money <= 3 * ONE + 6 * COSTS
        total = (7 + made(ended)) * COSTS
    async with node("c") as c:
        await c.change_budgets(add=[new])
        assert await asked(c)
        (state,) = await c.budgets()
        assert state.spent.money >= total

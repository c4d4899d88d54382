"""Random histories of an engine with budgets, compared with the sums of a list of calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard.adapters import NetworkError, ServerError, TokenUsage
from callboard.bus import LlmCallCompleted, LlmCallFailed, LlmCallStarted, StoreError, Subscription
from callboard.engine import AccountState, Budget, BudgetExceededError, Engine
from callboard.engine.calls.outcome import output_is_unknown
from callboard.tracestore import PriceRow, PriceTable
from tests.support.depth import first_is_quick
from tests.support.engines import running
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")

ROOM = 4
"""The number of the most expensive calls that fit into the budget."""
WORST = 65 * 1000 + 100 * 2000
"""The most that a call of this test can cost, in nano-USD."""
TENANTS = ("acme", "zoo")


def table(times: int) -> PriceTable:
    return PriceTable([PriceRow(model="s:m", input=times * 1_000_000, output=times * 2_000_000)], f"{times} times")


LIMITS = [
    Budget(max_cost_usd=Decimal(ROOM * WORST).scaleb(-9)),
    Budget(max_cost_usd=Decimal(6 * ROOM * WORST).scaleb(-9), follows_repricing=True),
    Budget(max_tokens=ROOM * 165 - 10, per="tag:tenant"),
]


class Row(msgspec.Struct):
    """An attempt, from its events."""

    tenant: str
    most_nano: int
    most_tokens: int
    unknown: bool = False
    at_call_nano: int = 0
    usage: TokenUsage | None = None


class Story:
    """An engine that restarts, and the rows of all its calls."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.script: list[Say] = []
        self.rows: dict[str, Row] = {}
        # The repricings that are in force: the factor of each, and its calls.
        self.runs: list[tuple[int, set[str]]] = []
        self.life = AsyncExitStack()
        self.engine: Engine
        self.events: Subscription

    async def begin(self) -> None:
        """Start an engine on the trace file, which may exist already."""
        await self.life.aclose()
        # Each engine has its own script with enough replies.
        self.script = [self.reply() for _ in range(200)]
        made = running(*self.script, store=self.path, prices=table(1), budgets=LIMITS)
        self.engine, self.events = await self.life.enter_async_context(made)

    def reply(self) -> Say:
        """A complete reply, an error of the server, or a lost connection."""
        usage = TokenUsage(self.chance.randint(0, 65), self.chance.randint(0, 100))
        kind = self.chance.random()
        if kind < 0.6:
            return Say("x", usage=usage, pause=self.look)
        if kind < 0.8:
            return Say(fails=ServerError("busy", provider_status=503), pause=self.look)
        return Say("x", fails=NetworkError("dropped"), pause=self.look)

    async def look(self) -> None:
        """Check within each call that no budget is overspent."""
        await anyio.sleep(self.chance.random() / 500)
        for state in await self.engine.budgets():
            if not state.budget.follows_repricing:
                assert (state.left_nano_usd or 0) >= 0, "the budget is overspent"
                assert (state.left_tokens or 0) >= 0, "the budget is overspent"

    async def crowd(self) -> None:
        """Make some concurrent calls, and sometimes cancel one of them."""
        calls = [asyncio.ensure_future(self.call()) for _ in range(self.chance.randint(1, 8))]
        if self.chance.random() < 0.4:
            await anyio.sleep(0.001)
            self.chance.choice(calls).cancel()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        wrong = [end for end in ends if isinstance(end, Exception)]
        assert all(isinstance(end, BudgetExceededError | NetworkError | ServerError) for end in wrong), wrong
        for end in wrong:
            if isinstance(end, BudgetExceededError):
                assert self.is_too_much(end), "the refused call would have fitted"

    async def call(self) -> object:
        tags = {"tenant": self.chance.choice(TENANTS)}
        return await self.engine.generate("s:m", "Hi", max_output_tokens=100, tags=tags, max_retries=0)

    @staticmethod
    def is_too_much(end: BudgetExceededError) -> bool:
        if end.left_usd is not None:
            return end.asked_usd is not None and end.asked_usd > end.left_usd
        return end.left_tokens is not None and end.asked_tokens > end.left_tokens

    async def reprice(self) -> None:
        times = self.chance.randint(2, 5)
        await self.engine.reprice(table(times))
        self.runs.append((times, {*self.rows}))

    async def undo(self) -> None:
        try:
            await self.engine.undo_reprice()
        except StoreError:
            assert not self.runs
        else:
            self.runs.pop()

    def read(self) -> None:
        """Read the new events into rows."""
        for envelope in self.events.take():
            key, data = envelope.request_id or "", envelope.data  # No call has a second attempt.
            if isinstance(data, LlmCallStarted):
                tenant = (envelope.tags or {})["tenant"]
                self.rows[key] = Row(tenant, data.reserved_nano_usd or 0, data.reserved_tokens or 0)
            elif isinstance(data, LlmCallCompleted | LlmCallFailed):
                row = self.rows[key]
                row.unknown = output_is_unknown(data)
                row.usage = data.usage
                row.at_call_nano = 0 if data.cost is None else data.cost.nano_usd or 0

    def nano(self, key: str, *, current: bool) -> int:
        """The known cost of a call: at call time, or under the last repricing in force."""
        row = self.rows[key]
        times, covered = self.runs[-1] if self.runs else (1, set())
        if not current or row.usage is None or key not in covered:
            return row.at_call_nano
        return times * (row.usage.input_tokens * 1000 + row.usage.output_tokens * 2000)

    def expected(self, state: AccountState) -> tuple[int, int, int, int, int]:
        """An account's spent money and tokens, its unknown money and tokens, and its unknown calls."""
        rows = {key: row for key, row in self.rows.items() if state.scope in ("", row.tenant)}
        lost = [row for row in rows.values() if row.unknown]
        known = {key: row for key, row in rows.items() if not row.unknown}
        return (
            sum(self.nano(key, current=state.budget.follows_repricing) for key in known),
            sum(row.usage.total_tokens for row in known.values() if row.usage is not None),
            sum(row.most_nano for row in lost),
            sum(row.most_tokens for row in lost),
            len(lost),
        )

    async def check(self) -> None:
        await self.engine.flush()
        self.read()
        for state in await self.engine.budgets():
            told = (state.spent.money, state.spent.tokens, state.unknown.money, state.unknown.tokens)
            assert (*told, state.unknown_calls) == self.expected(state), state.budget.describe(state.scope)
            assert state.held.tokens == 0


@pytest.mark.parametrize("seed", first_is_quick(range(8), "more seeds", quick=3))
async def test_budgets_are_always_the_sums_of_the_calls(tmp_path: Path, seed: int) -> None:
    """Calls succeed, fail, are lost or are cancelled. Repricings, undos and restarts happen between them."""
    chance = random.Random(seed)
    story = Story(tmp_path / "trace.db", chance)
    acts: list[Callable[[], object]] = [story.crowd, story.crowd, story.reprice, story.undo, story.begin]
    try:
        await story.begin()
        for _ in range(12):
            await chance.choice(acts)()  # type: ignore[misc]
            await story.check()
    finally:
        await story.life.aclose()

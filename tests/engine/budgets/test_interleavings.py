"""Many callers at once, in random interleavings: no overspend, no phantom refusal, nobody forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import anyio
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import Bus, Cost, CostSource, LlmCallFailed, TokenUsage
from callboard.bus.errors import ErrorClass
from callboard.engine import Budget, BudgetExceededError
from callboard.engine.budgets.budget import Payer
from callboard.engine.budgets.budgets import Budgets
from callboard.engine.budgets.from_trace import Counted
from callboard.engine.budgets.ledger import Amount
from tests.support.virtual_time import FakeClock, run_virtual

LIMIT = 20


class Caller(msgspec.Struct):
    """One call: when it comes, what it asks, how long it takes, and how it ends."""

    session: str
    asks: int
    comes: int
    takes: int
    ends: str
    uses: int


callers = st.builds(
    Caller,
    session=st.sampled_from(["a", "b"]),
    asks=st.integers(0, LIMIT + 3),
    comes=st.integers(0, 20),
    takes=st.integers(0, 15),
    ends=st.sampled_from(["settled", "unknown", "cancelled"]),
    uses=st.integers(0, LIMIT),
)
limits = st.lists(
    st.builds(
        Budget,
        max_tokens=st.just(LIMIT),
        per=st.sampled_from(["engine", "session"]),
        window=st.sampled_from([None, timedelta(seconds=60), "hour"]),
        when_full=st.sampled_from(["refuse", "wait"]),
    ),
    min_size=1,
    max_size=3,
)


def ended(caller: Caller) -> LlmCallFailed:
    """The end of its attempt."""
    unknown = caller.ends == "unknown"
    return LlmCallFailed(
        provider="s",
        model="s:m",
        error_class=str(ErrorClass.NETWORK),
        error_type="NetworkError",
        message="",
        will_retry=False,
        retry_count=0,
        delay_seconds=0.0,
        usage=None if unknown else TokenUsage(min(caller.uses, caller.asks)),
        cost=None if unknown else Cost(0, CostSource.COMPUTED),
        latency_ms=1,
    )


class World:
    """Budgets under watch."""

    def __init__(self, budgets: list[Budget]) -> None:
        self.clock = FakeClock()
        self.budgets = Budgets(budgets, Bus(clock=self.clock), self.clock, self.load)
        self.counts: dict[str, int] = {}

    async def load(self, budgets: object, now_us: int) -> Counted:
        await anyio.sleep(1)
        return Counted([])

    def check(self) -> None:
        for state in self.budgets.states():
            assert state.left_tokens is not None
            assert state.left_tokens >= 0, "overspent"

    async def call(self, number: int, caller: Caller) -> str:
        await anyio.sleep(caller.comes)
        name, payer = f"{number}/1", Payer("s:m", caller.session)
        asked = Amount(0, caller.asks)
        try:
            await self.budgets.reserve(name, payer, asked)
        except BudgetExceededError:
            refusals = self.budgets.ledger.would_refuse(payer, asked, self.clock.now_us())
            assert refusals, "a phantom refusal"
            return "refused"
        self.check()
        self.counts[name] = caller.asks
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.sleep(caller.takes)
        self.budgets.settle(name, payer, ended(caller), number)
        if caller.ends != "unknown":
            self.counts[name] = min(caller.uses, caller.asks)
        self.check()
        return "made"


@settings(max_examples=150, deadline=None)
@given(budgets=limits, crowd=st.lists(callers, max_size=14))
def test_whatever_the_order_nothing_is_overspent_and_nobody_who_fits_is_left(
    budgets: list[Budget], crowd: list[Caller]
) -> None:
    """Callers come, wait, are cancelled, end with any cost or none that is known; windows begin anew."""

    async def run() -> None:
        world = World(budgets)
        tasks = [asyncio.ensure_future(world.call(number, caller)) for number, caller in enumerate(crowd)]

        async def give_up(task: asyncio.Task[str], caller: Caller) -> None:
            await anyio.sleep(caller.comes + caller.takes / 2)
            if caller.ends == "cancelled":
                task.cancel()

        impatient = [
            asyncio.ensure_future(give_up(task, caller)) for task, caller in zip(tasks, crowd, strict=True)
        ]
        await anyio.sleep(0.5)  # between the moments at which something happens
        for _ in range(80):
            await anyio.sleep(1)
            world.check()
            waiting = world.budgets._waiters
            if waiting:
                first = waiting[0]
                refusals = world.budgets.ledger.would_refuse(first.payer, first.asked, world.clock.now_us())
                assert refusals, "the first that waits has room"
        for task in (*tasks, *impatient):
            task.cancel()
        ends = await asyncio.gather(*tasks, *impatient, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, AssertionError)]
        assert world.budgets.waiting == 0
        assert world.budgets.ledger.held == ()
        for state in world.budgets.states():
            if state.budget.window is None:
                mine = [
                    world.counts[f"{number}/1"]
                    for number, caller in enumerate(crowd)
                    if f"{number}/1" in world.counts and state.scope in ("", caller.session)
                ]
                assert state.spent.tokens + state.unknown.tokens == sum(mine)

    run_virtual(run)

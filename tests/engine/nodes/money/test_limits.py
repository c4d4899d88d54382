"""Rate limits that nodes share: together they never pass the limit, and each gets what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from callboard.bus import Bus, NodeLimitsChanged, StoreUnavailable
from callboard.engine.nodes.rate_limits import RateLimitShares
from callboard.engine.rate_limits.gate import Gate
from callboard.engine.rate_limits.permit import LiveGate, Permit
from callboard.tracestore.nodes import Answer, Wants
from tests.support.shared_tables import LedgerModel
from tests.support.virtual_time import FakeClock, runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("virtual-asyncio")


class Rows(LedgerModel):
    """The rows by the loop's time, which may be out of reach."""

    gone = False

    @property
    def now(self) -> float:  # type: ignore[override]
        return anyio.current_time()

    @now.setter
    def now(self, value: float) -> None:
        pass

    async def grant(self, node: str, number: int, wants: Wants) -> Answer:
        if self.gone:
            raise StoreUnavailable("gone")
        await anyio.sleep(0.002)
        return await super().grant(node, number, wants)


class Node:
    """A node with one gate, and the moments at which its requests were sent."""

    def __init__(self, name: str, rows: Rows, limit: int) -> None:
        self.bus = Bus(clock=FakeClock())
        self.shares = RateLimitShares(rows, name, self.bus, FakeClock(), self._living)
        self.live = LiveGate("s", "", Gate(limit, None))
        self.shares.join(self.live)
        self.sent: list[float] = []

    async def _living(self) -> int:
        return 2

    async def request(self) -> None:
        permit = Permit(self.live, "s:m", 0, (10, 10), None)
        if not permit.ask():
            await permit.wait(1e9)
        assert permit.send()
        self.sent.append(anyio.current_time())
        permit.end(None, None)


@asynccontextmanager
async def nodes(rows: Rows, count: int, limit: int) -> AsyncIterator[list[Node]]:
    made = [Node(f"run_{number}", rows, limit) for number in range(count)]
    async with anyio.create_task_group() as group:
        for node in made:
            group.start_soon(node.shares.run)
        yield made
        group.cancel_scope.cancel()


def most_in_a_minute(sent: list[float]) -> int:
    ordered = sorted(sent)
    return max((sum(at <= each < at + 60 for each in ordered) for at in ordered), default=0)


async def test_requests_of_all_nodes_together_stay_within_the_limit_of_a_minute() -> None:
    """However they are spread over the nodes; and the limit is used."""
    rows = Rows()
    async with nodes(rows, 3, 10) as (a, b, c):
        await asyncio.gather(*(node.request() for node in [a] * 20 + [b] * 9 + [c]))
        sent = [*a.sent, *b.sent, *c.sent]
    assert len(sent) == 30
    assert most_in_a_minute(sent) <= 10
    assert max(sent) - min(sent) < 200, "thirty requests at ten a minute"


async def test_what_one_node_does_not_use_another_one_does() -> None:
    """Also what it had a minute ago."""
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
    """A minute and a half later; until then the provider may still count its requests."""
    rows = Rows()
    async with nodes(rows, 1, 10) as (a,):
        await asyncio.gather(*(a.request() for _ in range(10)))
    async with nodes(rows, 1, 10) as (b,):
        rows.dead.clear()
        b.shares._node = "run_b"
        began = anyio.current_time()
        await b.request()
        assert 60 <= anyio.current_time() - began <= 95


async def test_without_the_store_each_node_uses_an_even_part() -> None:
    """And says so; with the store, shares are as before."""
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
            assert len(a.sent) == 5, "half of the limit, for two nodes"
            rows.gone = False
        assert anyio.current_time() - began < 10
        told = [each.data for each in events.take()]
    assert told == [
        NodeLimitsChanged(current="divided", nodes=2, reason="gone"),
        NodeLimitsChanged(current="shared", nodes=2),
    ]

"""One probe call for the whole cluster checks whether a provider works again."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import anyio
import pytest

from callboard.bus import Bus, StoreUnavailable
from callboard.engine import Engine
from callboard.engine.nodes.availability import LEASE_SECONDS, ProbeLeases
from callboard.engine.routing.availability import AvailabilityTable, Record
from tests.support.cluster_engines import node_engine
from tests.support.postgres_server import why_not
from tests.support.scripted import Say
from tests.support.shared_tables import ProbeModel
from tests.support.virtual_time import FakeClock, runs_on

anyio_backend = runs_on("virtual-asyncio")


class Rows(ProbeModel):
    """The rows by the loop's time, with a delay of some milliseconds. The rows can be unavailable."""

    gone = False

    async def take(self, node: str, provider: str, model: str, seconds: float) -> float:
        await anyio.sleep(0.002)
        if self.gone:
            raise StoreUnavailable("gone")
        self.now = anyio.current_time()
        return await super().take(node, provider, model, seconds)


class Host:
    """A node that can probe a provider and one of its models now."""

    def __init__(self, rows: Rows, name: str) -> None:
        self.clock = FakeClock()
        self.clock.now_us = lambda: round(anyio.current_time() * 1e6) + 10**12  # type: ignore[method-assign]
        self.table = AvailabilityTable()
        for model in (None, "p:m"):
            self.table._records["p", model] = Record("p", model, "unavailable", retry_at_us=0)
        self.bus = Bus(run_id=name)
        self.leases = ProbeLeases(name, rows, self.table, self.bus, self.clock)
        self.probes = 0

    async def call(self) -> bool:
        """Make a call with a choice. Return whether it probed."""
        while self.table.readiness("p", "p:m", self.clock.now_us()).kind != "closed":
            if await self.leases.may_go("p", "p:m"):
                self.probes += 1
                for change in self.table.begin("p", "p:m", f"req_{self.probes}", self.clock.now_us()):
                    self.bus.publish(change)
                return True
        return False

    def end(self) -> None:
        """End the probe without an answer."""
        for change in self.table.abandon(f"req_{self.probes}", self.clock.now_us()):
            self.bus.publish(change)


async def test_one_call_of_all_nodes_probes() -> None:
    """Many calls run concurrently on several nodes. The next call can probe after the end of the first probe."""
    rows = Rows()
    hosts = [Host(rows, name) for name in "abc"]
    async with anyio.create_task_group() as group:
        for host in hosts:
            group.start_soon(host.leases.run)
        probed = await asyncio.gather(*(host.call() for host in hosts * 5))
        assert probed.count(True) == 1
        await anyio.sleep(5 * LEASE_SECONDS)
        assert await asyncio.gather(*(host.call() for host in hosts)) == [False] * 3, (
            "the probe is still in progress"
        )
        next(host for host in hosts if host.probes).end()
        await anyio.sleep(LEASE_SECONDS)
        assert (await asyncio.gather(*(host.call() for host in hosts))).count(True) == 1
        group.cancel_scope.cancel()


async def test_the_lease_of_a_dead_node_ends_soon() -> None:
    rows = Rows()
    a, b = Host(rows, "a"), Host(rows, "b")
    assert await a.call()
    assert not await b.call()
    await anyio.sleep(LEASE_SECONDS)
    assert await b.call()


async def test_without_the_store_each_node_probes_by_itself() -> None:
    """One probe for each node is better than no probe."""
    rows = Rows()
    rows.gone = True
    hosts = [Host(rows, name) for name in "ab"]
    assert await asyncio.gather(*(host.call() for host in hosts)) == [True, True]
    assert not await hosts[0].call()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_calls_of_two_engines_probe_once_and_go_elsewhere(postgres_dsn: str, tmp_path: Path) -> None:
    all_wait, answered = asyncio.Event(), asyncio.Event()
    steps = itertools.count(1)  # Each call waits in its first step until all calls have started.

    async def answer() -> None:
        if next(steps) == len(calls):
            all_wait.set()
        await answered.wait()

    replies = [Say("x", pause=answer)] * 4

    async def asked(engine: Engine) -> str:
        return (await engine.generate("s:m", "Hi", fallback=["s:n"])).response.model

    async with (
        node_engine("a", postgres_dsn, tmp_path, *replies) as a,
        node_engine("b", postgres_dsn, tmp_path, *replies) as b,
    ):
        for engine in (a, b):
            engine._runtime.availability._records["s", "s:m"] = Record("s", "s:m", "unavailable", retry_at_us=0)
        calls = [asyncio.create_task(asked(engine)) for engine in (a, b, a, b)]
        with anyio.fail_after(30):
            await all_wait.wait()
        answered.set()
        models = await asyncio.gather(*calls)
    assert sorted(model.rpartition(":")[2] for model in models) == ["m", "n", "n", "n"]

"""Engines of one cluster, in one process, on a real NATS server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard.engine import Cluster, Engine
from callboard.engine.nodes import mirrors
from tests.support.cluster_engines import node_of
from tests.support.engines import registry
from tests.support.nats_server import NatsServer, own_nats_server, why_no_nats
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time after which a connection counts as steady, because servers are local."""
    monkeypatch.setattr(mirrors, "STEADY_SECONDS", 1.5)


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    if (reason := why_no_nats()) is not None:
        pytest.skip(reason)
    with own_nats_server() as server:
        yield server


class Gate:
    """Lets a scripted reply take a number of steps."""

    def __init__(self, steps: int = 0) -> None:
        self._steps = anyio.Semaphore(steps)

    def open(self, steps: int = 1000) -> None:
        for _ in range(steps):
            self._steps.release()

    async def step(self) -> None:
        await self._steps.acquire()


async def connected(engine: Engine) -> None:
    """Wait until the engine is connected to the broker."""
    node = node_of(engine)
    with anyio.fail_after(10):
        while not node.broker.connected or node.frames is None or node.frames.mirrors._group is None:  # noqa: ASYNC110
            await anyio.sleep(0.005)


@asynccontextmanager
async def nodes(server: NatsServer, count: int, *replies: Say, **options: Any) -> Any:
    """Engines of one cluster. Only the first one has replies."""
    async with AsyncExitStack() as stack:
        engines = []
        for number in range(count):
            cluster = Cluster(nats=server.url, node=f"n{number}")
            models = registry(*(replies if number == 0 else ()))
            engine = Engine(models=models, cluster=cluster, **{"trace": False, **options})
            engines.append(await stack.enter_async_context(engine))
            await connected(engine)
        yield engines

"""One round, derived from a seed: three nodes, one conversation or one budget, and one fault."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import anyio

from .checks import failures_of
from .conversation import Conversation
from .process import NodeProcess
from .servers import Servers
from .spending import Spending

FAULTS = ("kill", "stop", "postgres", "nats", "clock", "budget", "both", "late")


class Round:
    """Three nodes, their fault, and the violations."""

    def __init__(self, seed: int, fault: str, folder: Path, servers: Servers) -> None:
        self.fault = fault
        self.failures: list[str] = []
        self._dice = random.Random(f"{seed} {fault}")
        self._folder = folder
        self._servers = servers
        self._key = f"sk-lab-{seed}-{fault}"
        lease = self._dice.choice((2, 3))
        kind = Spending if fault == "budget" else Conversation
        self._scene = kind(fault, self._dice, servers, lease, seed)
        skews = self._skews()
        self._nodes = [
            NodeProcess(name, folder, self._environment(lease, skews.get(place, 0)))
            for place, name in enumerate(("a", "b", "c"))
        ]

    @property
    def told(self) -> str:
        """The description of the fault."""
        return self._scene.told

    def _skews(self) -> dict[int, int]:
        """The clock offsets of the nodes in seconds."""
        wrong = self.fault == "clock" or (self.fault == "budget" and self._dice.random() < 0.5)
        return {self._dice.randrange(3): self._dice.choice((-3600, 3600))} if wrong else {}

    def _environment(self, lease: int, skew: int) -> Mapping[str, str]:
        servers = {"LAB_NATS": self._servers.nats_url, "LAB_STORE": self._servers.dsn, "LAB_KEY": self._key}
        variables = {"CALLBOARD_HOME": str(self._folder), "LAB_LEASE": str(lease), "LAB_SKEW": str(skew)}
        return {**os.environ, **servers, **variables, **self._scene.environment()}

    async def play(self) -> None:
        """Play the round and check the results."""
        self._servers.write_configuration(self._folder)
        async with anyio.create_task_group() as group:
            try:
                await _of_all(partial(node.start, group) for node in self._nodes)
                await self._scene.play(self._nodes, group)
                # the next process on a file ends the calls that the killed process had in progress
                await _of_all(partial(node.start, group) for node in self._nodes if node.killed)
            except* AssertionError as errors:
                self.failures += map(str, errors.exceptions)
            finally:
                with anyio.CancelScope(shield=True):
                    await _of_all(node.stop for node in self._nodes)
                group.cancel_scope.cancel()
        await self._examine()

    async def _examine(self) -> None:
        served = await self._servers.provider.served(self._key)
        traces = [node.trace for node in self._nodes]
        self.failures += self._scene.failures
        self.failures += self._scene.failures_of_provider(served)
        self.failures += await failures_of(traces, self._servers.dsn, self._folder, served, self._scene.whole)
        self.failures += await self._scene.failures_of_store(self._folder)


async def _of_all(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run steps on several nodes concurrently."""
    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(step)

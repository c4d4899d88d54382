"""Concurrent callers on three nodes that share a budget."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.abc

from .process import NodeProcess
from .provider import CALL_NANO_USD, Served
from .servers import Servers

CALLERS = 50
AFFORDED = 10
FAULTS = ("nothing", "kill", "stop", "postgres", "nats")


class Spending:
    """Fifty callers with a budget for ten calls, a fault of their nodes, and nine more callers.

    Args:
    fault: Not used: the fault is chosen at random.
    dice: The random generator of the seed.
    servers: The servers that the nodes share.
    lease: The duration of a lease in seconds.
    seed: Not used.
    """

    def __init__(self, fault: str, dice: random.Random, servers: Servers, lease: int, seed: int) -> None:
        self.failures: list[str] = []
        self.told = ""
        self._dice = dice
        self._servers = servers
        self._lease = lease
        self._befalls = dice.choice(FAULTS)
        self._window = dice.choice(("", "month"))
        self._made = 0

    @property
    def whole(self) -> bool:
        """Whether each call ends by itself."""
        return self._befalls != "kill"

    def environment(self) -> Mapping[str, str]:
        """Additional environment variables of the nodes."""
        limit = {"LAB_BUDGET": f"{AFFORDED * CALL_NANO_USD / 1e9:.9f}"}
        return {**limit, "LAB_WINDOW": self._window} if self._window else limit

    async def play(self, nodes: Sequence[NodeProcess], group: anyio.abc.TaskGroup) -> None:
        """Start all callers and inject the fault."""
        shares = [CALLERS // 3, CALLERS // 3, CALLERS - 2 * (CALLERS // 3)]
        calls = [(node, await node.command(callers=share)) for node, share in zip(nodes, shares, strict=True)]
        victim, at_victim = self._dice.choice(calls)
        pause = self._dice.random() * 0.4
        await anyio.sleep(pause)
        await self._befall(victim)
        for node, number in calls:
            if not node.killed:
                await node.end(number)
        calls += [(node, await node.command(callers=3)) for node in nodes if not node.killed]
        for node, number in calls[len(nodes) :]:
            await node.end(number)
        self._made = sum(node.count(number, "made") for node, number in calls)
        lost = victim.count(at_victim, "made") if victim.killed else 0
        self.told = f"{self._befalls} of {victim.name} after {pause:.2f} s, {self._made} made, {lost} before it"

    async def _befall(self, victim: NodeProcess) -> None:
        away = self._dice.random() * 2
        if self._befalls == "kill":
            await victim.kill()
        elif self._befalls == "stop":
            victim.send_signal(signal.SIGSTOP)
            await anyio.sleep(self._lease + 1 + away)
            victim.send_signal(signal.SIGCONT)
        elif self._befalls == "postgres":
            await self._servers.restart_postgres()
        elif self._befalls == "nats":
            await self._servers.wipe_nats(away)

    def failures_of_provider(self, served: Served) -> list[str]:
        """The calls that exceeded the budget, and the calls that were refused although the budget allowed them."""
        failures = []
        if max(served.requests, self._made) > AFFORDED:
            failures.append(f"{served.requests} requests and {self._made} calls, with money for {AFFORDED}")
        if self.whole and self._made != AFFORDED:
            failures.append(f"{self._made} calls, with money for {AFFORDED}")
        return failures

    async def failures_of_store(self, folder: Path) -> list[str]:
        """No additional checks."""
        return []

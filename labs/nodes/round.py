"""One round: three nodes, one session or one budget, and one fault, all by a seed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from tests.support.nats_server import NatsServer
from tests.support.postgres_server import StartedServer
from tests.support.reply_server import words

from .checks import conversation_failures, failures_of
from .process import NodeProcess

FAULTS = ("kill", "stop", "postgres", "nats", "clock", "budget")
DELTAS = 40
PER_SECOND = 30.0
TEXT = "".join(words(DELTAS))
CALLERS = 50
AFFORDED = 10
NANO_USD_A_CALL = 120 * 1000

MODELS = """
adapters:
  lab: {{type: openai_compatible, base_url: "{url}/v1", api_key_env: LAB_KEY}}
models:
  "lab:bench": {{adapter: lab}}
"""
PRICES = """
label: the lab's
date: 2026-01-01
prices:
  - {model: "lab:*", input: 0, output: 1}
"""


class Round:
    """Three nodes, what befell them, and what was wrong."""

    def __init__(self, seed: int, fault: str, folder: Path, dsn: str) -> None:
        self.dice = random.Random(f"{seed} {fault}")
        self.fault = fault
        self.folder = folder
        self.session = f"ses_lab_{seed}"
        self.dsn = dsn
        self.lease = self.dice.choice((2, 3, 4))
        self.asked: list[str] = []
        self.told = ""
        self.failures: list[str] = []
        self.nodes: list[NodeProcess] = []

    async def play(self, postgres: StartedServer, nats: NatsServer, provider: str) -> None:
        """Play the round, and look at what is left."""
        (self.folder / "models.yaml").write_text(MODELS.format(url=provider))
        (self.folder / "prices.yaml").write_text(PRICES)
        skew = self.dice.choice((-3600, 3600)) if self.fault == "clock" else 0
        skewed = self.dice.randrange(3)
        self.nodes = [
            NodeProcess(name, self.folder, self._environment(nats, skew if place == skewed else 0))
            for place, name in enumerate(("a", "b", "c"))
        ]
        async with anyio.create_task_group() as group:
            try:
                for node in self.nodes:
                    await node.start(group)
                await (self._spend() if self.fault == "budget" else self._talk(postgres, nats))
            except AssertionError as error:
                self.failures.append(str(error))
            finally:
                with anyio.CancelScope(shield=True):
                    for node in self.nodes:
                        await node.stop()
                group.cancel_scope.cancel()
        self.failures += await failures_of([node.trace for node in self.nodes], self.dsn, self.folder)
        if self.asked:
            self.failures += await conversation_failures(self.dsn, self.folder, self.session, self.asked, TEXT)

    def _environment(self, nats: NatsServer, skew: int) -> Mapping[str, str]:
        lab = {"LAB_NATS": nats.url, "LAB_STORE": self.dsn, "LAB_LEASE": str(self.lease), "LAB_SKEW": str(skew)}
        if self.fault == "budget":
            lab["LAB_BUDGET"] = f"{AFFORDED * NANO_USD_A_CALL / 1e9:.9f}"
        return {**os.environ, "CALLBOARD_HOME": str(self.folder), "LAB_KEY": "sk-lab", **lab}

    async def _ask(self, node: NodeProcess, **more: object) -> tuple[int, str]:
        """Ask the next question. Returns the command, and the turn's stream."""
        self.asked.append(f"Question {len(self.asked) + 1}?")
        number = await node.command(session=self.session, ask=self.asked[-1], **more)
        return number, await node.stream(number)

    async def _whole_turn(self, node: NodeProcess, readers: list[NodeProcess], **more: object) -> None:
        asked, stream = await self._ask(node, **more)
        reading = [(reader, await reader.command(read=stream)) for reader in readers]
        self._expect(f"{node.name}'s turn", await node.end(asked), TEXT, "completed")
        for reader, number in reading:
            self._expect(f"{reader.name}'s reader", await reader.end(number), TEXT, "completed")

    def _expect(self, who: str, got: tuple[str, str], text: str, *ends: str) -> None:
        if not TEXT.startswith(got[0]) or (got[1] == "completed" and got[0] != text):
            self.failures.append(f"{who} has another text: {got[0]!r}")
        if got[1] not in ends:
            self.failures.append(f"{who} ended as {got[1]!r}, not {' or '.join(ends)}")

    async def _talk(self, postgres: StartedServer, nats: NatsServer) -> None:
        owner, second, third = self.dice.sample(self.nodes, 3)
        await self._whole_turn(owner, [second], begin=True)
        if self.dice.random() < 0.5:
            await self._whole_turn(owner, [])
        asked, stream = await self._ask(owner)
        reading = [(reader, await reader.command(read=stream)) for reader in (second, third)]
        frame = self.dice.randrange(1, DELTAS - 2)
        await owner.until(asked, lambda _: owner.pieces(asked) >= frame)
        befalls = self.fault
        if befalls == "clock":
            befalls = self.dice.choice(("kill", "nothing"))
        self.told = f"owner {owner.name}, frame {frame}, lease {self.lease} s, {befalls}"
        await self._befall(befalls, owner, postgres, nats)
        lost = befalls in ("kill", "stop")
        ends = ("outcome_unknown",) if lost else ("completed",)
        if lost and self.dice.random() < 0.5:  # taken over at once, or when the readers have seen the end
            await self._whole_turn(second, [third])
        for reader, number in reading:
            self._expect(f"{reader.name}'s reader of the fault", await reader.end(number), TEXT, *ends)
        if not lost:
            self._expect("the owner's turn", await owner.end(asked), TEXT, "completed")
        await self._whole_turn(second, [third])
        if befalls == "stop":
            await self._wake(owner, asked)
        await self._whole_turn(third, [second])

    async def _befall(self, what: str, owner: NodeProcess, postgres: StartedServer, nats: NatsServer) -> None:
        if what == "kill":
            owner.send_signal(signal.SIGKILL)
        elif what == "stop":
            owner.send_signal(signal.SIGSTOP)
        elif what == "postgres":
            await anyio.to_thread.run_sync(postgres.restart, "immediate")
        elif what == "nats":
            nats.stop()
            nats.wipe()
            await anyio.sleep(self.dice.random() * 2)
            await anyio.to_thread.run_sync(nats.start)

    async def _wake(self, owner: NodeProcess, asked: int) -> None:
        """Wake the owner. Its turn may not be kept, and its session is another's."""
        owner.send_signal(signal.SIGCONT)
        _, end = await owner.end(asked)
        if end == "completed" or not ("TakenOver" in end or end == "outcome_unknown"):
            self.failures.append(f"the turn of the owner that slept ended as {end!r}")
        if self.dice.random() < 0.5:
            await self._whole_turn(owner, [self.dice.choice([node for node in self.nodes if node is not owner])])

    async def _spend(self) -> None:
        """Fifty callers on three nodes, one of which is killed, against a budget for ten calls."""
        shares = [CALLERS // 3, CALLERS // 3, CALLERS - 2 * (CALLERS // 3)]
        calls = [(node, await node.command(callers=share)) for node, share in zip(self.nodes, shares, strict=True)]
        victim, number = self.dice.choice(calls)
        pause = self.dice.random() * 0.3
        await anyio.sleep(pause)
        victim.send_signal(signal.SIGKILL)
        living = [(node, each) for node, each in calls if node is not victim]
        for node, each in living:
            await node.end(each)
        made = sum(node.count(each, "made") for node, each in living) + victim.count(number, "made")
        self.told = f"{victim.name} killed after {pause:.2f} s, {made} calls made"
        if made > AFFORDED:
            self.failures.append(f"{made} calls were made with money for {AFFORDED}")

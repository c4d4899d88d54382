"""A conversation on three nodes with a fault in the middle of a turn, and the readers of that turn."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.abc

from .checks import conversation_failures
from .process import NodeProcess
from .provider import DELTAS, TEXT, Served
from .reading import Reading
from .servers import Servers

LATE_SECONDS = 0.1
"""The maximum time after the last piece of text at which an owner is killed near the end of a turn."""


class Conversation:
    """A session whose turns run on any of the nodes and are read on the others.

    Args:
    fault: The fault of the owner, or of all nodes.
    dice: The random generator of the seed.
    servers: The servers that the nodes share.
    lease: The duration of a lease in seconds.
    seed: The seed.
    """

    def __init__(self, fault: str, dice: random.Random, servers: Servers, lease: int, seed: int) -> None:
        self.failures: list[str] = []
        self.told = ""
        self._dice = dice
        self._servers = servers
        self._session = f"ses_lab_{seed}"
        self._befalls = dice.choice(("kill", "nothing")) if fault == "clock" else fault
        self._lease = lease
        self._asked: list[str] = []
        self._end = ""  # how the turn with the fault ended, as the first reader saw it
        self._said: dict[int, str] = {}  # the replies that were read, by position
        self._may_lack: list[int] = []  # the positions of turns that only the broker had, the last one first

    @property
    def whole(self) -> bool:
        """Whether each call ends by itself."""
        return self._befalls not in ("kill", "late", "stop", "both")

    def environment(self) -> Mapping[str, str]:
        """Additional environment variables of the nodes."""
        return {}

    async def play(self, nodes: Sequence[NodeProcess], group: anyio.abc.TaskGroup) -> None:
        """Run the conversation."""
        owner, second, third = self._dice.sample(nodes, 3)
        await self._turn(owner, [second], begin=True)
        if self._dice.random() < 0.5:
            await self._turn(owner, [])
        asked, stream = await self._ask(owner)
        place, late = len(self._asked) - 1, self._befalls == "late"
        frame = DELTAS if late else self._dice.randrange(1, DELTAS - 2)
        readings = [await Reading("a reader", stream).begin(node) for node in (second, third)]
        hopper, there = self._dice.sample((second, third), 2)
        hopping = await Reading("a reader who moved", stream).begin(hopper, self._dice.randrange(1, frame + 1))
        await owner.until(asked, lambda _: owner.pieces(asked) >= frame)
        self.told = f"owner {owner.name}, frame {frame}, lease {self._lease} s, {self._befalls}"
        await anyio.sleep(self._dice.random() * LATE_SECONDS if late else 0)
        await self._befall(owner)
        readings.append(await Reading("a late reader", stream).begin(self._dice.choice((second, third))))
        await hopping.go_on(there)
        if not self.whole and self._dice.random() < 0.5:  # the session is taken over before readers see the end
            await self._turn(second, [third])
        texts = [await self._read(reading) for reading in (*readings, hopping)]
        self.told += f", caller told {owner.count(asked, 'done')} end, readers {self._end}"
        if self.whole:
            self._check("the owner's turn", (await owner.end(asked))[:2])
        await self._turn(second, [third])
        await self._aftermath(owner, asked, stream, group)
        await self._turn(third, [second])
        texts += [
            await self._read(await Reading("the last reader", stream).begin(node)) for node in (second, third)
        ]
        self._agree(place, texts)

    async def _aftermath(self, owner: NodeProcess, asked: int, stream: str, group: anyio.abc.TaskGroup) -> None:
        """Start, resume or reconnect the owner after its fault."""
        if self._befalls == "stop":
            owner.send_signal(signal.SIGCONT)
            end = await owner.end(asked)
            if not ("TakenOver" in end.end or end.end == "outcome_unknown"):
                self.failures.append(f"the turn of the owner that slept ended as {end.end!r}")
            await self._read(await Reading("a reader where the owner slept", stream).begin(owner))
        if self._dice.random() < 0.5:
            if owner.killed:
                await owner.start(group)
            await self._turn(owner, [], anew=True)

    # -- Turns and readers

    async def _ask(self, node: NodeProcess, **more: object) -> tuple[int, str]:
        """Ask the next question. Returns the number of the command and the turn's stream."""
        self._asked.append(f"Question {len(self._asked) + 1}?")
        number = await node.command(session=self._session, ask=self._asked[-1], **more)
        return number, await node.stream(number)

    async def _turn(self, node: NodeProcess, readers: Sequence[NodeProcess], **more: object) -> None:
        """Run a turn without a fault."""
        asked, stream = await self._ask(node, **more)
        self._said[len(self._asked) - 1] = TEXT
        readings = [await Reading("a reader", stream).begin(reader) for reader in readers]
        self._check(f"{node.name}'s turn", (await node.end(asked))[:2])
        for reading in readings:
            self._check(f"{reading.who} of {node.name}'s turn", await reading.end())

    async def _read(self, reading: Reading) -> str:
        """Read the turn with the fault to its end. Returns its text."""
        text, end = await reading.end()
        due = "completed" if self.whole else "outcome_unknown"
        if self._befalls == "late":  # the first reader decides how the turn ended
            due = self._end = self._end or ("completed" if end == "completed" else due)
        self._check(reading.who, (text, end), due)
        return text

    def _check(self, who: str, got: tuple[str, str], due: str = "completed") -> None:
        text, end = got
        if not TEXT.startswith(text) or (end == "completed" and text != TEXT):
            self.failures.append(f"{who} has another text: {text!r}")
        if end != due:
            self.failures.append(f"{who} ended as {end!r}, not {due!r}")

    def _agree(self, place: int, texts: list[str]) -> None:
        """Check that all readers got the same text, and keep it. A turn may be missing if only the wiped broker
        had it. A turn that failed before its first text leaves no reply.
        """
        if self._befalls == "both":
            self._may_lack = [*range(place, -1, -1)]
        elif not any(texts):
            self._may_lack = [place]
        else:
            self._said[place] = texts[0]
            if len(set(texts)) > 1:
                self.failures.append(f"readers of one stream disagree: {texts}")

    # -- Faults

    async def _befall(self, owner: NodeProcess) -> None:
        away = self._dice.random() * 2
        if self._befalls == "stop":
            owner.send_signal(signal.SIGSTOP)
        if self._befalls in ("kill", "late", "both"):
            await owner.kill()
        if self._befalls in ("nats", "both"):
            await self._servers.wipe_nats(away)
        if self._befalls == "postgres":
            await self._servers.restart_postgres()

    # -- Afterwards

    def failures_of_provider(self, served: Served) -> list[str]:
        """The differences from the provider's counts."""
        due = len(self._asked)
        return [] if served.requests == due else [f"{due} turns made {served.requests} requests"]

    async def failures_of_store(self, folder: Path) -> list[str]:
        """The faults of the stored conversation."""
        by_number = dict(enumerate(self._asked))
        may_lack = iter(self._may_lack)
        while True:
            failures = await conversation_failures(self._servers.dsn, folder, self._session, by_number, self._said)
            if not failures or (place := next(may_lack, None)) is None:
                return failures
            del by_number[place]

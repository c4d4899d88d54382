"""What one node has learned of a provider's rate limits, told to the others over the broker.

The limits of a provider hold for a key, whoever uses it. A refusal (429) is told at once: all leave the model
alone for as long as the provider has said. What is left by its headers is told once in a second and model at most.
Times go out as time since then and from then on, because the clocks of hosts differ.

Nodes that use one key must call it by the same name, as the nodes of a cluster do: all are configured alike.
"""

from __future__ import annotations

import anyio
import msgspec

from callboard.bus import Log

from ...rate_limits.lessons import Lesson
from ...rate_limits.rate_limits import RateLimits
from .part import MessageBroker

_log = Log("engine.shared_limits")

TELL_SECONDS = 1.0
"""The least time between two tellings, unless somebody was refused."""

_Place = tuple[str, str, str]


class Told(msgspec.Struct, frozen=True):
    """A lesson, as it goes to the others."""

    node: str
    """The node: the run of its engine."""
    adapter: str
    """The adapter's name."""
    key: str
    """The name of the key."""
    lesson: Lesson
    """What was learned."""
    age_us: int
    """Microseconds since then."""


class LearnedLimits:
    """The part of a node. See `engine.nodes.part`.

    Args:
        node: This node.
        cluster: The cluster's name.
        broker: The broker.
    """

    name = "learned limits"
    limits: RateLimits
    """The limits of the engine; set before the start."""

    def __init__(self, node: str, cluster: str, broker: MessageBroker) -> None:
        self._node = node
        self._subject = f"callboard.{cluster}.limits"
        self._broker = broker
        self._listens = False
        self._news: dict[_Place, tuple[Lesson, float]] = {}
        self._come = anyio.Event()
        self._hurry = anyio.Event()

    def share(self, limits: RateLimits) -> None:
        """Share what an engine learns."""
        self.limits = limits
        limits.on_learned = self.note

    def note(self, adapter: str, key: str, lesson: Lesson) -> None:
        """Note what a reply has taught here. What it says stands for what was noted before."""
        self._news[adapter, key, lesson.model] = lesson, anyio.current_time()
        self._come.set()
        if lesson.pause_us:
            self._hurry.set()

    async def run(self) -> None:
        """Tell and be told, until cancelled."""
        if not self._listens:
            await self._broker.subscribe(self._subject, self.receive)
            self._listens = True
        while True:
            await self._come.wait()
            self._come, self._hurry = anyio.Event(), anyio.Event()
            self._tell()
            with anyio.move_on_after(TELL_SECONDS):
                await self._hurry.wait()

    async def drain(self) -> None:
        """Nothing waits that matters to anybody later."""

    async def close(self) -> None:
        """Nothing is held."""

    def receive(self, _subject: str, payload: bytes, _reply: str) -> None:
        """Take in what another node has learned."""
        try:
            told = msgspec.json.decode(payload, type=Told)
        except msgspec.DecodeError as error:  # of another version
            _log.debug("lesson_not_read", error=str(error))
            return
        if told.node != self._node:
            self.limits.learn(told.adapter, told.key, told.lesson, told.age_us)

    def _tell(self) -> None:
        news, self._news = self._news, {}
        for (adapter, key, _), (lesson, at) in news.items():
            age_us = max(round((anyio.current_time() - at) * 1e6), 0)
            told = Told(self._node, adapter, key, lesson, age_us)
            self._broker.publish(self._subject, msgspec.json.encode(told))

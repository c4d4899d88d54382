"""A part of a node, and the actor that keeps it at work."""

from __future__ import annotations

from typing import Protocol

import msgspec

from callboard.bus import Actor, ActorContext, ChildSpec


class Part(Protocol):
    """One subject of a node: it is made with the engine, works while the engine lives, and ends in two steps.

    Servers that can't be reached are no errors of a part. It says so on the bus, and goes on when they are back.
    """

    @property
    def name(self) -> str:
        """The part's name in the tree of supervision."""

    async def run(self) -> None:
        """Work until cancelled. It may be called again, after an exception."""

    async def drain(self) -> None:
        """Let go out what is left: all turns are over, and the trace is committed to its end, the store still
        open. At most a second or two; it is cut off after that.
        """

    async def close(self) -> None:
        """Let go of everything that the node holds, and of connections: the trace has been shipped. Called once,
        also when `run` never was. At most a second or two; it is cut off after that.
        """


class _Failed(msgspec.Struct, frozen=True):
    error: Exception


class PartActor(Actor):
    """The actor around a part, so that its crash is seen, counted and mended."""

    def __init__(self, part: Part) -> None:
        self._part = part

    async def started(self, context: ActorContext) -> None:
        async def work() -> None:
            try:
                await self._part.run()
            except Exception as error:
                context.ref.tell(_Failed(error))

        context.spawn(work, name="run")

    async def receive(self, message: object) -> object:
        """Takes nothing from outside. Raises TypeError."""
        if isinstance(message, _Failed):
            raise message.error
        raise TypeError(f"{self._part.name} does not understand {type(message).__name__}")


def child_of(part: Part) -> ChildSpec:
    """The part as a child of a supervisor. A part that can't be kept running stays down, and calls go on."""
    return ChildSpec(part.name, lambda: PartActor(part), on_limit="stop")

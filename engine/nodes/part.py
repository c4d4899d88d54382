"""A part of a node, and its place below the supervisor that keeps it at work."""

from __future__ import annotations

from typing import Protocol

from callboard.bus import ChildSpec
from callboard.bus.actors.actor import WorkActor


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


def child_of(part: Part) -> ChildSpec:
    """The part as a child of a supervisor. A part that can't be kept running stays down, and calls go on."""
    return ChildSpec(part.name, lambda: WorkActor(part.run, part.name), on_limit="stop")

"""The values that go from a trace file to a shared store, and the interface of the store's end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from ..sql.connection import Row


class Position(msgspec.Struct, frozen=True):
    """A place in a trace file: an event, and everything before it.

    The number alone would not do. A file whose events were all pruned counts from 1 again, and a copy of a file
    goes its own way.
    """

    event: int = 0
    """The number of the event in the file; 0 is the beginning."""
    run_id: str = ""
    """The run of the event."""
    seq: int = 0
    """The number of the event in its run."""


START = Position()
"""The place before the first event."""


class SessionContent(msgspec.Struct, frozen=True):
    """Captured content that came with the events of a shipment, as rows. Runs stand in them by name."""

    setups: list[Row]
    """session_id, run_id, seq, ts_us, history, hash, withheld"""
    messages: list[Row]
    """session_id, position, run_id, seq, ts_us, hash, message_id, metadata, withheld"""
    bodies: list[Row]
    """hash, last_us, body"""


class Shipment(msgspec.Struct, frozen=True):
    """Events that follow one another in a trace file."""

    rows: list[Row]
    """The events, as `tracestore.sql.events` reads them: the number, then the columns."""
    after: Position
    """The place behind which they lie."""
    last: Position
    """The place of the last one."""
    runs: set[str]
    """The runs of the events."""
    content: SessionContent | None = None
    """The content that was captured with them; None if there is none."""


class Ending(msgspec.Struct, frozen=True):
    """The end of a run."""

    ended_us: int
    """The time at which the run was marked as ended."""
    ending: str
    """The way it ended, as in the column of that name."""


class Origin(msgspec.Struct, frozen=True):
    """A trace file, as a shared store knows it."""

    name: str
    """An identifier that no other file has."""
    host: str = ""
    """The name of the machine, for people."""
    file: str = ""
    """The path, for people."""


class Target(Protocol):
    """A shared store, as a shipper sees it. Whatever fails is a StoreError."""

    @property
    def name(self) -> str:
        """The name of the store in messages and file names, without any password."""
        ...

    async def open(self) -> None:
        """Reach the store, and bring it up to date. Does nothing if that is done."""
        ...

    async def close(self) -> None:
        """Let go of the store. Closing twice is harmless."""
        ...

    async def position(self, origin: Origin) -> Position:
        """The place up to which the store has everything of a file; `START` if it knows nothing of the file."""
        ...

    async def take(self, origin: Origin, shipment: Shipment) -> Position:
        """Store what is new of a shipment, with what follows from it, and the place of its end: all in one
        transaction.

        Returns:
            The place up to which the store has everything of the file. It is further on than this shipment if
            another shipper was quicker. A shipment from `START` is believed, and the place goes back.

        Raises:
            Unstorable: A value is to blame.
        """
        ...

    async def open_runs(self, origin: Origin) -> Collection[str]:
        """The runs of a file that have no end in the store."""
        ...

    async def end_runs(self, endings: Mapping[str, Ending]) -> None:
        """Mark runs as ended."""
        ...

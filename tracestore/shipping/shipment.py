"""The values that go from a trace file to a shared store, and the interface of the store's end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..sql.connection import Row
from ..sql.projection import Projection
from ..sql.run_numbers import RunSpan
from ..sql.upkeep.erasures import Erasure
from .text import Lines


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


class Read(msgspec.Struct, frozen=True):
    """Events as they were read, column by column. So thousands of events are few objects."""

    runs: list[int]
    """The numbers of their runs in the file."""
    columns: Sequence[Sequence[Any]]
    """Their values, in the order of `packing.EVENT_COLUMNS`."""

    def __len__(self) -> int:
        return len(self.runs)


class SessionContent(msgspec.Struct, frozen=True):
    """Captured content that came with the events of a shipment, as rows. Runs stand in them by name."""

    setups: list[Row]
    """session_id, run_id, seq, ts_us, history, hash, withheld, epoch"""
    messages: list[Row]
    """session_id, position, run_id, seq, ts_us, hash, message_id, metadata, withheld, epoch"""
    bodies: list[Row]
    """hash, last_us, body"""


class Shipment(msgspec.Struct, frozen=True):
    """Events that follow one another in a trace file, and what follows from them."""

    after: Position
    """The place behind which they lie."""
    last: Position
    """The place of the last one."""
    read: Read
    """The events as they were read."""
    events: Lines
    """The events as text."""
    runs: dict[int, RunSpan]
    """The parts of runs that the events are, by the numbers of the runs in the file."""
    first_seqs: dict[int, int]
    """The lowest number of an event in each run, by the numbers of the runs in the file."""
    sessions: dict[str, tuple[int, int]]
    """The times of the first and the last event of each session that is not dead, in microseconds UTC."""
    days: set[int]
    """The days of the events, since 1970."""
    projected: list[int]
    """The places of the events that change other tables."""
    projection: Projection
    """What follows from those."""
    begun: list[Lines]
    """The calls that begin here, as text."""
    content: SessionContent | None = None
    """The content that was captured with the events; None if there is none."""
    is_all: bool = True
    """Whether nothing lay behind it when it was read."""
    erased: int = 0
    """The number of the last deletion in the file when it was read. The store has done all up to that one."""
    dead: Collection[str] = ()
    """The sessions that were deleted in the file after all that is said of them here."""

    def __len__(self) -> int:
        return len(self.read)


class Reading(msgspec.Struct, frozen=True):
    """What is to be done next of a trace file: deletions come before events."""

    shipment: Shipment | None = None
    """The next events; None if there are none."""
    erasures: Sequence[Erasure] = ()
    """The next deletions."""


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
            another shipper was quicker. It is before the shipment if the store has fallen back, as to a backup:
            then nothing was stored. A shipment from `START` is believed, and the place goes back.

        Raises:
            Unstorable: A value is to blame.
        """
        ...

    async def pass_over(self, origin: Origin, shipment: Shipment) -> None:
        """Note the place of the end of a shipment that the store can't take."""
        ...

    async def erased(self, origin: Origin) -> int:
        """The number of the last deletion of a file that the store has done."""
        ...

    async def erase(self, origin: Origin, erasures: Collection[Erasure]) -> None:
        """Delete what was deleted in a file. A deletion that was done before is not done again."""
        ...

    async def open_runs(self, origin: Origin) -> Collection[str]:
        """The runs of a file that have no end in the store."""
        ...

    async def end_runs(self, endings: Mapping[str, Ending]) -> None:
        """Mark runs as ended."""
        ...

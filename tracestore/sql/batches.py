"""Batches of envelopes on their way into a store, each made a part at a time, while others on the event loop have
their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Self

import anyio.lowlevel
from msgspec.structs import astuple

from callboard.bus.events.codec import topic_of
from callboard.bus.events.envelope import Envelope

from ..codec import encode_events
from ..writing.captured import CapturedMessage, CapturedSetup
from .call_rows import IDENTITY, RUN, Values
from .calls.columns import json_text
from .connection import Insert, Statements
from .content import store_content
from .projection import PROJECTED, UPSERT_SESSION, Projection, flat, make_storable
from .run_numbers import RunSpan, ranges

# An envelope is nearly a row already: the columns are its fields, and the topic.
STORED_COLUMNS = (*("run" if name == "run_id" else name for name in Envelope.__struct_fields__), "topic")
"""The columns of an event's row in a batch."""

_RUN, _DATA, _TAGS = map(STORED_COLUMNS.index, ("run", "data", "tags"))
_identity = itemgetter(*map(STORED_COLUMNS.index, IDENTITY))
INSERT_EVENT = Insert("events", STORED_COLUMNS, "ON CONFLICT DO NOTHING")

_MADE_AT_ONCE = 32
"""Events that are made into rows before others on the event loop have their turn: some 0.2 ms of CPU."""

_MOST_MADE_AT_ONCE = 256
_MADE_PER_SECOND = 40_000
"""How many more are made for each second that the others have taken: that is about a quarter of their time."""


class Batch:
    """Envelopes, encoded and sorted by the statement that stores them.

    It is made outside of the transaction: `add` takes as many at a time as the event loop can spare, and
    `complete` ends it.
    """

    def __init__(self) -> None:
        self.events: Values = []
        """The values of `STORED_COLUMNS`, row after row. A run's name stands for its number until `write`."""
        self.projection = Projection()
        """What follows from them."""
        self.runs: list[RunSpan] = []
        """The parts of runs that `complete` found."""
        self._captured: list[Envelope] = []
        self._sessions: Values = []

    @classmethod
    def of(cls, envelopes: Sequence[Envelope]) -> Self:
        """A complete batch of these envelopes, for where no event loop waits."""
        batch = cls()
        batch.add(envelopes)
        batch.complete()
        return batch

    def add(self, envelopes: Sequence[Envelope]) -> None:
        """Take in more envelopes, about 5 microseconds of CPU each."""
        for envelope, text in zip(envelopes, encode_events(envelopes), strict=True):
            self._add(envelope, text)

    def complete(self, clean: Callable[[str], str] | None = None) -> None:
        """Join the rows that belong together. Call it once, after the last `add` and before `write`.

        Args:
            clean: Makes a text that the database takes of one that it doesn't. With it every value is looked at,
                and an impossible count is unknown. Without it the database finds out, which costs nothing as long
                as all is well.
        """
        self.projection.complete()
        moments = self._column("ts_us")
        sessions: dict[str, tuple[int, int]] = ranges(self._column("session_id"), moments)
        self._sessions = self.projection.sessions(sessions)
        names = self._column("run")
        seqs: dict[str, tuple[int, int]] = ranges(names, self._column("seq"))
        times: dict[str, tuple[int, int]] = ranges(names, moments)
        self.runs = [RunSpan(name, *between, seqs[name][1]) for name, between in times.items()]
        if clean is not None:
            self.projection.make_storable(clean)
            for run in self.runs:
                run.run_id = clean(run.run_id)
            for values in (self.events, self._sessions):
                make_storable(values, clean)

    def write(self, statements: Statements, number_of: Callable[[RunSpan], int]) -> dict[str, int]:
        """Execute the statements that store the batch, once. Its rows have the numbers of their runs then.

        Args:
            statements: The connection, in a transaction.
            number_of: Notes a run and returns its number.

        Returns:
            The numbers of the runs, by name.
        """
        numbers = {run.run_id: number_of(run) for run in self.runs}
        if self._captured:
            store_content(statements, self._captured, numbers)
        column = slice(_RUN, None, len(STORED_COLUMNS))
        self.events[column] = [numbers[str(run)] for run in self.events[column]]
        statements.insert(INSERT_EVENT, self.events)
        for insert, rows, _ in self.projection.calls:
            if rows:
                for row in rows:
                    row[RUN] = numbers[str(row[RUN])]
                statements.insert(insert, flat(rows))
        statements.insert(UPSERT_SESSION, self._sessions)
        self.projection.write_behind_calls(statements)
        return numbers

    def _column(self, name: str) -> list[Any]:
        return self.events[STORED_COLUMNS.index(name) :: len(STORED_COLUMNS)]

    def _add(self, envelope: Envelope, text: str) -> None:
        row: Values = list(astuple(envelope))
        data, tags = envelope.data, envelope.tags
        row[_DATA] = text
        if tags is not None:
            row[_TAGS] = json_text(tags) if tags else None
        row.append(topic_of(data))
        self.events += row
        if type(data) in PROJECTED:
            self.projection.add(data, envelope.run_id, envelope.ts_us, list(_identity(row)), tags)
        elif isinstance(data, CapturedMessage | CapturedSetup) and envelope.session_id is not None:
            self._captured.append(envelope)


async def batch_of(envelopes: Sequence[Envelope], clean: Callable[[str], str] | None = None) -> Batch:
    """Whoever else is on the loop waits for a part of the batch, never for all of it. `clean` as in `Batch`."""
    batch = Batch()
    begin, count = 0, _MADE_AT_ONCE
    while begin < len(envelopes):
        batch.add(envelopes[begin : begin + count])
        begin += count
        paused = time.perf_counter()
        await anyio.lowlevel.checkpoint()
        count = made_at_once(time.perf_counter() - paused)
    batch.complete(clean)
    return batch


def made_at_once(others_seconds: float) -> int:
    """How many events to make into rows next, after the others on the loop have taken so long.

    Where thousands of tasks want their turn, a small part for each of theirs would let the writer fall behind.
    """
    return max(_MADE_AT_ONCE, min(_MOST_MADE_AT_ONCE, int(others_seconds * _MADE_PER_SECOND)))

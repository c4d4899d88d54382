"""What this process has just written to a trace file, as rows. Whoever ships them need not read them again.

The file alone says which events are to be shipped: their runs and numbers are read behind a position. Where these
are just those of the batches that were written last, the values are taken from memory, and so is what follows from
them for calls. In every other case all of it is read: at the start, after an outage, when other processes write to
the file, and when something was deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from ..sql.batches import STORED_COLUMNS, Batch
from ..sql.call_rows import Values
from ..sql.projection import Projection
from .packing import EVENT_COLUMNS
from .shipment import Position, Read

MOST_EVENTS = 10_000
"""The number of events that are kept at most; older ones are forgotten."""

MOST_BYTES = 8_000_000
"""The size of their data that is kept at most."""

_RUN, _SEQ, _DATA = map(STORED_COLUMNS.index, ("run", "seq", "data"))
_ORDER = tuple(map(STORED_COLUMNS.index, EVENT_COLUMNS))
_WIDTH = len(STORED_COLUMNS)


class Written(msgspec.Struct, frozen=True):
    """A batch of events of one run that was written to the file, in the order of their numbers there."""

    run: int
    """The number of the run in the file."""
    run_id: str
    """The name of the run."""
    seqs: list[int]
    """The numbers of the events in their run."""
    events: Values
    """The values of the events, row after row, in the order of `STORED_COLUMNS`."""
    projection: Projection
    """What follows from them."""
    size: int
    """The length of their data."""


class Recent:
    """The last batches that were written to one trace file, which only grows while somebody ships them."""

    def __init__(self) -> None:
        self._batches: deque[Written] = deque()
        self._events = self._size = 0

    def keep(self, batch: Batch) -> None:
        """Keep a batch that was committed. One of several runs is left to be read."""
        if len(batch.runs) != 1:
            return
        values: list[Any] = batch.events
        seqs, size = values[_SEQ::_WIDTH], sum(map(len, values[_DATA::_WIDTH]))
        self._batches.append(Written(values[_RUN], batch.runs[0].run_id, seqs, values, batch.projection, size))
        self._events += len(seqs)
        self._size += size
        while self._events > MOST_EVENTS or self._size > MOST_BYTES:
            self._drop_first()

    def behind(self, position: Position) -> Sequence[Written]:
        """What is kept of the events behind a position. The batches up to there are forgotten."""
        places = [place for place, batch in enumerate(self._batches) if _is_before(batch, position)]
        for _ in range(places[-1] + 1 if places else 0):  # they are in the order of the file
            self._drop_first()
        return tuple(self._batches)

    def forget(self) -> None:
        """Forget all: nobody ships it now."""
        self._batches.clear()
        self._events = self._size = 0

    def _drop_first(self) -> None:
        first = self._batches.popleft()
        self._events -= len(first.seqs)
        self._size -= first.size


def _is_before(batch: Written, position: Position) -> bool:
    return batch.run_id == position.run_id and batch.seqs[-1] <= position.seq


def matching(batches: Iterable[Written], run: int, run_id: str, seqs: Sequence[int]) -> list[Written]:
    """The batches that are the first of some events of a run. What was written before those is left out.

    Args:
        batches: The batches.
        run: The number of the run in the file.
        run_id: The name of the run.
        seqs: The numbers in their run of the events that lie behind a position in the file, in their order there.

    Returns:
        None of them if most of the events are in no batch. They are better read in one go.
    """
    found: list[Written] = []
    count = 0
    for batch in batches:
        end = count + len(batch.seqs)
        if (batch.run, batch.run_id) == (run, run_id) and seqs[count:end] == batch.seqs:
            found.append(batch)
            count = end
        elif found:
            break
    return found if 2 * count >= len(seqs) else []


def read_of(batches: Sequence[Written]) -> Read:
    """The events of batches of one run as if they had been read."""
    values: list[Any] = list(chain.from_iterable(batch.events for batch in batches))
    columns = [values[place::_WIDTH] for place in _ORDER]
    return Read(values[_RUN::_WIDTH], columns)

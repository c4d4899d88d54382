"""The numbers that runs have in a trace: the rows of `runs`, and those of them that one writer knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from .connection import SqlValue, Statements, greater, lesser

_KNOWN_RUNS = 256

_Name = TypeVar("_Name", int, str)


class RunSpan(msgspec.Struct):
    """The part of one run that is in a batch."""

    run_id: str
    """The name of the run."""
    first_us: int
    """The time of its first event in the batch, in microseconds UTC."""
    last_us: int
    """The time of its last event in the batch, in microseconds UTC."""
    seq: int
    """The highest number of its events in the batch."""


class RunNumbers:
    """The numbers of runs that a writer remembers, so that most batches need not look.

    A number is remembered only when the transaction that gave it is committed: otherwise it would be nobody's.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def remember(self, numbers: dict[str, int]) -> None:
        """Remember numbers that are committed, by the names of their runs."""
        if len(self._known) + len(numbers) > _KNOWN_RUNS:
            self._known.clear()
        self._known.update(numbers)

    def forget(self) -> None:
        """Forget all numbers: the file is another one, or rows of runs have gone or were marked as ended."""
        self._known.clear()

    def note(self, statements: Statements, run: RunSpan) -> int:
        """Note how far a run has got, and return its number. In a transaction."""
        span: dict[str, SqlValue] = {"run_id": run.run_id, "first": run.first_us}
        span |= {"last": run.last_us, "seq": run.seq}
        known = self._known.get(run.run_id)
        if known is not None:
            statements.run(_MOVE_ON, {**span, "id": known})
            return known
        ((number,),) = statements.run(_ENTER, span)
        return int(number)


_MOVE_ON = f"""
    UPDATE runs
       SET first_us = {lesser("first_us", ":first")},
           last_us = {greater("last_us", ":last")},
           committed_seq = {greater("committed_seq", ":seq")}
     WHERE id = :id
"""
_ENTER = f"""
    INSERT INTO runs (run_id, first_us, last_us, committed_seq)
    VALUES (:run_id, :first, :last, :seq)
    ON CONFLICT (run_id) DO UPDATE SET
        first_us = {lesser("runs.first_us", "excluded.first_us")},
        last_us = {greater("runs.last_us", "excluded.last_us")},
        committed_seq = {greater("runs.committed_seq", "excluded.committed_seq")},
        ended_us = NULL,
        ending = NULL
    RETURNING id
"""


def ranges(names: Sequence[_Name | None], values: Sequence[int]) -> dict[_Name, tuple[int, int]]:
    """The least and the greatest value of each name; both are of the same length. None is no name."""
    if len(set(names)) == 1 and names[0] is not None:
        return {names[0]: (min(values), max(values))}
    found: dict[_Name, list[int]] = {}
    for name, value in zip(names, values, strict=True):
        if name is not None:
            between = found.get(name)
            if between is None:
                found[name] = [value, value]
            elif value > between[1]:
                between[1] = value
            elif value < between[0]:
                between[0] = value
    return {name: (least, greatest) for name, (least, greatest) in found.items()}

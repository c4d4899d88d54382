"""Runs: their numbers, and the run that owns a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from callboard.bus.log import Log

from .connection import Database, SqlValue, Statements, greater, lesser

# --- Numbers of runs ---


_KNOWN_RUNS = 256

_Name = TypeVar("_Name", int, str)


class RunSpan(msgspec.Struct):
    """The part of one run that is in a batch."""

    run_id: str
    first_us: int
    """The time of its first event in the batch, in microseconds UTC."""
    last_us: int
    """The time of its last event in the batch, in microseconds UTC."""
    seq: int
    """The highest number of its events in the batch."""


class RunNumbers:
    """The numbers of runs that a writer remembers, so that most batches need no look-up.

    A number is remembered only after its transaction is committed: otherwise it might not exist.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def remember(self, numbers: dict[str, int]) -> None:
        """Remember numbers that are committed, by the names of their runs."""
        if len(self._known) + len(numbers) > _KNOWN_RUNS:
            self._known.clear()
        self._known.update(numbers)

    def forget(self) -> None:
        """Forget all numbers: the file is another, or rows of runs have gone or were marked as ended."""
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


# --- Owners of stored sessions ---
# A run that creates, restarts or resumes a session (`claim`) owns it from then on. Another run may still write to
# the session, for instance the rest of a turn in progress. Its messages are stored under another name,
# ``SESSION.RUN``: a session with the common history at its start. So if two hosts resume one session at the same
# time, there are two sessions in the end, and no message is lost.
#
# In a cluster each claim of a session has a number, its epoch, and messages carry it. A message with a lower epoch
# than the store's comes too late, also from the run that owns the session again. A message that the next owner has
# restored from frames does not conflict with the original.


_log = Log("tracestore.ownership")


def belongs(run: int, epoch: int, *, begins: bool, owner: tuple[int, int] | None, claimed: int) -> bool:
    """Whether an event of a run belongs to the session's current owner."""
    if epoch:
        if epoch < claimed or (owner is not None and epoch < owner[1]):
            return False
        return owner is None or epoch > owner[1] or run == owner[0]
    return owner is None or run == owner[0] or (begins and not claimed)


def is_anothers(statements: Statements, session_id: str, run: int, epoch: int, *, begins: bool = False) -> bool:
    """Whether the session belongs to another run by now, and keeps its owner to the end of the transaction."""
    found = statements.run("SELECT run, epoch FROM session_setups WHERE session_id = ?", (session_id,))
    owner = (int(found[0][0]), int(found[0][1])) if found else None
    query = statements.dialect.latest_claim
    claims = statements.run(query, (session_id,)) if query else []
    claimed = int(claims[0][0]) if claims else 0
    return not belongs(run, epoch, begins=begins, owner=owner, claimed=claimed)


def is_said(
    statements: Statements, session_id: str, position: int, message_id: str | None, digest: bytes | None
) -> bool:
    """Whether the session has that very message at that place."""
    return bool(
        statements.run(
            """
            SELECT 1 FROM session_messages
             WHERE session_id = ? AND position = ? AND message_id = ? AND hash = ?
            """,
            (session_id, position, message_id, digest),
        )
    )


def branch(
    statements: Statements,
    session_id: str,
    name: str,
    moment: tuple[int, int, int],
    history: int,
    epoch: int,
) -> str:
    """Make the session that keeps a run's own continuation, and return its id.

    The branch starts with the messages before the run's first one. If the owner wrote the last of these, the owner
    may have started again; then the branch is left without a start rather than given a wrong one. In a cluster it
    is left so if that message is of a later claim.
    """
    names: dict[str, SqlValue] = {
        "session": session_id,
        "branch": name,
        "run": moment[0],
        "ts": moment[2],
        "history": history,
        "epoch": epoch,
    }
    statements.run(
        f"""
        INSERT INTO sessions (session_id, first_us, last_us, model, tags, name)
        SELECT :branch, first_us, :ts, model, tags, name FROM sessions WHERE session_id = :session
        ON CONFLICT (session_id) DO UPDATE SET last_us = {greater("sessions.last_us", "excluded.last_us")}
        """,
        names,
    )
    if statements.run("SELECT 1 FROM session_setups WHERE session_id = ?", (name,)):
        return name
    statements.run(
        """
        INSERT INTO session_messages
               (session_id, position, run, seq, ts_us, hash, message_id, metadata, withheld, epoch)
        SELECT :branch, position, run, seq, ts_us, hash, message_id, metadata, withheld, epoch
          FROM session_messages
         WHERE session_id = :session AND position < :history
           AND (SELECT CASE WHEN :epoch > 0 THEN m.epoch <= :epoch ELSE m.run <> s.run END
                  FROM session_setups AS s JOIN session_messages AS m USING (session_id)
                 WHERE session_id = :session AND m.position = :history - 1)
        """,
        names,
    )
    statements.run(
        """
        INSERT INTO session_setups (session_id, run, seq, ts_us, history, hash, withheld)
        SELECT :branch, :run, 0, ts_us, :history, hash, withheld FROM session_setups WHERE session_id = :session
        """,
        names,
    )
    _log.warning("session_branched", session_id=session_id, branch=name)
    return name


def claim(statements: Statements, session_id: str, run: int, seq: int, history: int) -> bool:
    """Make a run the owner of a stored session. In a transaction."""
    return bool(
        statements.change(
            """
            UPDATE session_setups SET run = ?, seq = ?, history = ?
             WHERE session_id = ? AND (SELECT count(*) FROM session_messages WHERE session_id = ?) = ?
            """,
            (run, seq, history, session_id, session_id, history),
        )
    )


async def owner(database: Database, session_id: str, run_id: str) -> tuple[str | None, int]:
    """The run that owns a session, None if there is none; and the last number of `run_id` that is committed."""
    ((name, committed),) = await database.read(
        """
        SELECT (SELECT r.run_id
                  FROM session_setups AS s JOIN runs AS r ON r.id = s.run
                 WHERE s.session_id = ?),
               coalesce((SELECT committed_seq FROM runs WHERE run_id = ?), 0)
        """,
        (session_id, run_id),
    )
    return name, int(committed)

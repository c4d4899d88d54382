"""Runs: their numbers, and the run that owns a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from callboard.bus.log import Log

from .connection import Database, SqlValue, Statements, greater, lesser

# -- The numbers that runs have in a trace: the rows of `runs`, and those of them that one writer knows


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


# -- Who owns a stored session: one run at a time
#
# The run that makes a session, starts it again, or resumes it (`claim`) owns it from then on. Another run may
# still
# say something of the session, for instance the rest of a turn that was in progress. That is never mixed in. It is
# kept under a name of its own, ``SESSION.RUN``: a session that starts with the history that both have in common.
# So two hosts that resume one session at the same time have two sessions in the end, and nothing that was said is
# lost.
#
# In a cluster each claim of a session has a number, its epoch, and what is said under a claim carries it. What
# carries a lower one than the store knows by now comes too late, whoever says it: even the run that owns the
# session again. A message that the next owner has put together from what it had heard is not in the way of the
# same message from the first one.


_log = Log("tracestore.ownership")


def belongs(run: int, epoch: int, *, begins: bool, owner: tuple[int, int] | None, claimed: int) -> bool:
    """Whether what a run says of a session belongs to it."""
    if epoch:
        if epoch < claimed or (owner is not None and epoch < owner[1]):
            return False
        return owner is None or epoch > owner[1] or run == owner[0]
    return owner is None or run == owner[0] or (begins and not claimed)


def is_anothers(statements: Statements, session_id: str, run: int, epoch: int, *, begins: bool = False) -> bool:
    """Whether the session belongs to another run by now. In a transaction, at whose end nobody has claimed it."""
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

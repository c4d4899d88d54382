"""The run that owns a stored session: one run at a time.

The run that makes a session, begins it anew, or resumes it (`claim`) owns it from then on. Another run may still
say something of the session, for instance the rest of a turn that was under way. That is never mixed in. It is
kept under a name of its own, ``SESSION.RUN``: a session that begins with the history that both have in common. So
two hosts that resume one session at once have two sessions in the end, and nothing that was said is lost.
"""

from __future__ import annotations

from bus.log import Log

from ..writing.captured import CapturedMessage, CapturedSetup
from .connection import Database, SqlValue, Statements, greater

_log = Log("tracestore.ownership")


def is_anothers(statements: Statements, session_id: str, run: int, event: CapturedMessage | CapturedSetup) -> bool:
    """Whether the session belongs to another run by now. A run that begins it anew makes it its own."""
    if isinstance(event, CapturedSetup) and event.begins:
        return False
    owner = statements.run("SELECT run FROM session_setups WHERE session_id = ?", (session_id,))
    return bool(owner) and owner[0][0] != run


def branch(
    statements: Statements,
    session_id: str,
    name: str,
    moment: tuple[int, int, int],
    event: CapturedMessage | CapturedSetup,
) -> str:
    """Make the session that keeps a run's own continuation, and return its id.

    The branch begins with the messages before the run's first one. If the owner wrote the last of these, the owner
    may have begun anew; then the branch is left without a beginning rather than given a wrong one.

    Args:
        statements: The connection, in a transaction.
        session_id: The session that another run owns.
        name: The id of the branch.
        moment: The number of the run, the event's number in it, and the event's time in microseconds UTC.
        event: The first event of the run that is kept in the branch.
    """
    history = event.position if isinstance(event, CapturedMessage) else event.history
    names: dict[str, SqlValue] = {
        "session": session_id,
        "branch": name,
        "run": moment[0],
        "ts": moment[2],
        "history": history,
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
        INSERT INTO session_messages (session_id, position, run, seq, ts_us, hash, message_id, metadata, withheld)
        SELECT :branch, position, run, seq, ts_us, hash, message_id, metadata, withheld
          FROM session_messages
         WHERE session_id = :session AND position < :history
           AND (SELECT m.run <> s.run
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
    """Make a run the owner of a stored session. In a transaction.

    Args:
        statements: The connection.
        session_id: The session.
        run: The number of the run.
        seq: The number of the run's latest event.
        history: The number of messages that the run took over.

    Returns:
        False if the stored history isn't of that length any more.
    """
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

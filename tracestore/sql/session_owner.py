"""Who goes on with a stored session: one run at a time.

Whoever makes it, begins it anew, or resumes it (`claim`) owns it from then on. What another run still says of
it, a turn that was under way for instance, is never mixed in: it is kept under a name of its own,
``SESSION.RUN``, a session that begins with the history that both have in common. So two who resume one session
at once have two sessions in the end, and nothing that was said is lost.
"""

from __future__ import annotations

from bus.log import Log

from ..sqlite.database import Database, Statements
from ..sqlite.insert import SqlValue
from ..writing.captured import CapturedMessage, CapturedSetup

_log = Log("tracestore.ownership")


def is_anothers(statements: Statements, session_id: str, run: int, event: CapturedMessage | CapturedSetup) -> bool:
    """Whether the session belongs to another run by now. Whoever begins it anew makes it its own."""
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
    """The name under which a run's own continuation is kept. Made with what it has in common with the session.

    That is what stands before its first message, unless it is the owner who wrote the last of it: then the owner
    may have begun anew, and the branch is left without a beginning rather than given a wrong one.
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
        """
        INSERT INTO sessions (session_id, first_us, last_us, model, tags, name)
        SELECT :branch, first_us, :ts, model, tags, name FROM sessions WHERE session_id = :session
        ON CONFLICT (session_id) DO UPDATE SET last_us = max(last_us, excluded.last_us)
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
    """Make a run the owner of a stored session. False if its history isn't of that length any more.

    seq: of the run's latest event. For a transaction.
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
    """The query behind `TraceStore.session_owner`."""
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

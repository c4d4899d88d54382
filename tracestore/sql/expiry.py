"""The deletion of content: by age, or with pruned and deleted sessions.

Names, tags, the texts of errors and the names of tools may quote content, so they are deleted with the messages.
Events are append-only. So an event is replaced by its figures (see `tracestore.codec`) under the same number, in a
transaction with the permission to delete it.

Deleted bytes are erased, as far as the database supports it. Several sessions may share a body. So the content of
a pruned session is deleted in two steps: first its rows, then the bodies without any session.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from callboard.bus.events.codec import decode_event

from ..codec import encode_event, figures_of
from ..gateway import forget_kept_before, forget_kept_of, note_forgotten
from ..prices.rows import MAX_INT64
from .connection import Database, Row, SqlValue, Statements, placeholders

BODIES_AT_ONCE = 500
EVENTS_AT_ONCE = 500


class Needed(NamedTuple):
    """The state of bodies at one time, for a sweep."""

    hashes: set[bytes]
    moment: str
    """The moment, see `Dialect.moment`."""
    spared: list[int]
    """The numbers of other bodies. They were not deleted, because they may have been written since the moment."""


# A body refers to other bodies by name. Quotes inside a text are escaped, so text never looks like a name.
_REFERENCE = re.compile(rb'"(?:hash|stored_data)":"([0-9a-f]{64})"')


def delete_sessions(statements: Statements, names: Sequence[str]) -> int:
    """Delete sessions with their content, except bodies. The caller holds a transaction."""
    if not names:
        return 0
    listed = placeholders(len(names))
    which = f"session_id IN ({listed})"
    for statement in statements.dialect.with_sessions:
        statements.run(statement.format(names=listed), names)
    with statements.erasing():  # metadata may quote content, too
        content = [statements.change(f"DELETE FROM {table} WHERE {which}", names) for table in _CONTENT]
        content.append(forget_kept_of(statements, names))
        return statements.change(f"DELETE FROM sessions WHERE {which}", names) or int(any(content))


_CONTENT = ("session_messages", "session_setups")


# --- Words in events and calls ---


@contextlib.contextmanager
def allowed(statements: Statements, before_us: int) -> Iterator[None]:
    """A context in which this transaction may delete events and costs from before a given time."""
    statements.run("INSERT INTO pruning (before_us) VALUES (?)", (before_us,))
    yield
    statements.run("DELETE FROM pruning")


_EVENT = (
    *("id", "run", "seq", "topic", "ts_us", "mono_ns", "session_id", "turn_id", "request_id", "attempt"),
    *("message_id", "caused_by", "tags", "data"),
)
_TOPIC, _TAGS, _DATA = map(_EVENT.index, ("topic", "tags", "data"))

WORDY = (
    *("session.created", "session.renamed", "session.turn_completed", "llm.call_failed", "llm.call_guarded"),
    *("tool.started", "tool.progress", "tool.finished", "job.failed", "batch.planned"),
)
"""Topics with texts that are erased by age.

Tags and the host's own events are kept, because they are not captured content.
"""

_OF_SESSION = "(session_id = ? OR request_id IN (SELECT request_id FROM calls WHERE session_id = ?))"


def _of_origin(origin: str | None) -> tuple[str, list[str]]:
    """The SQL condition that limits rows to the runs of a shipped file, and its parameters."""
    return ("", []) if origin is None else (" AND run IN (SELECT id FROM runs WHERE shipped_from = ?)", [origin])


def erase_words(statements: Statements, session_id: str, origin: str | None = None) -> None:
    """Erase the texts in a session's events and calls, but not their figures. The caller holds a transaction."""
    of_origin, more = _of_origin(origin)
    where, values = f"{_OF_SESSION}{of_origin}", [session_id, session_id, *more]
    calls, of_calls = f"session_id = ?{of_origin}", [session_id, *more]
    after = 0
    while after := _erase_some(statements, where, values, after, keeps_tags=False):
        pass
    with statements.erasing():
        statements.run(f"DELETE FROM call_tags WHERE call_id IN (SELECT id FROM calls WHERE {calls})", of_calls)
        statements.run(
            f"""
            DELETE FROM imported_files
             WHERE path IN (SELECT origin_file FROM calls WHERE {calls} AND origin_file IS NOT NULL)
            """,
            of_calls,
        )
        statements.run(
            f"""
            UPDATE calls SET tags = NULL, error_message = NULL, routing = NULL, usage_raw = NULL,
                   origin_file = NULL
             WHERE {calls}
            """,
            of_calls,
        )


def erase_old_words(statements: Statements, before_us: int, after: int, origin: str | None = None) -> int:
    """Erase texts from before a given time, in some events. The caller holds a transaction."""
    of_origin, more = _of_origin(origin)
    where = f"ts_us < ? AND topic IN ({placeholders(len(WORDY))}){of_origin}"
    return _erase_some(statements, where, [before_us, *WORDY, *more], after, keeps_tags=True)


def forget_names(statements: Statements, before_us: int, origin: str | None = None) -> None:
    """Erase names of sessions and texts of errors from before a given time. The caller holds a transaction."""
    of_origin, more = _of_origin(origin)
    with statements.erasing():
        statements.run(
            f"""
            UPDATE sessions SET name = NULL
             WHERE name IS NOT NULL AND first_us < ?
               AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.session_id = sessions.session_id
                                  AND e.topic = 'session.renamed' AND e.ts_us >= ?)
               AND ({"1 = 1" if origin is None else _SHIPPED})
            """,
            (before_us, before_us, *more),
        )
        statements.run(
            f"UPDATE calls SET error_message = NULL WHERE error_message IS NOT NULL AND ts_us < ?{of_origin}",
            (before_us, *more),
        )


_SHIPPED = """
    EXISTS (SELECT 1 FROM events AS e JOIN runs AS r ON r.id = e.run
             WHERE e.session_id = sessions.session_id AND r.shipped_from = ?)
"""


def _erase_some(
    statements: Statements, where: str, values: Sequence[SqlValue], after: int, *, keeps_tags: bool
) -> int:
    """Replace some events with their figures. Return the number of the last event, or 0 if there was none."""
    rows = statements.run(
        f"SELECT {', '.join(_EVENT)} FROM events WHERE {where} AND id > ? ORDER BY id LIMIT ?",
        (*values, after, EVENTS_AT_ONCE),
    )
    changed = [(row, figures) for row in rows if (figures := _figures(row, keeps_tags)) != row]
    if changed:
        with statements.erasing(), allowed(statements, MAX_INT64):
            statements.run_many("DELETE FROM events WHERE id = ?", [(row[0],) for row, _ in changed])
            statements.run_many(
                f"INSERT INTO events ({', '.join(_EVENT)}) VALUES ({placeholders(len(_EVENT))})",
                [figures for _, figures in changed],
            )
    return int(rows[-1][0]) if rows else 0


def _figures(row: Row, keeps_tags: bool) -> Row:
    topic, data = row[_TOPIC], row[_DATA]
    event = decode_event(topic, data)
    bare = figures_of(event, keeps_tags=keeps_tags)
    figures = list(row)
    if bare is not event:
        figures[_DATA] = encode_event(bare).decode("utf-8", "replace")
    if not keeps_tags:
        figures[_TAGS] = None
    return tuple(figures)


# --- Deleting content ---


async def forget_content(database: Database, before_us: int, at_us: int) -> int:
    """Delete content that was last used before a given time, and erase it.

    Afterwards, older sessions can't be resumed and have no names. Events and costs are kept, without their texts.
    """

    def work(statements: Statements) -> int:
        note_erasure(statements, Erasure(at_us=at_us, before_us=before_us))
        forget_names(statements, before_us)
        forget_kept_before(statements, before_us)
        note_forgotten(statements)
        with statements.erasing():
            statements.run("DELETE FROM session_messages WHERE ts_us < ?", (before_us,))
            statements.run("DELETE FROM session_setups WHERE ts_us < ?", (before_us,))
            return statements.change("DELETE FROM content WHERE last_us < ?", (before_us,))

    after = 0
    while after := await database.write(partial(erase_old_words, before_us=before_us, after=after)):
        pass
    return await database.write(work)


async def delete_session(
    database: Database, session_id: str, at_us: int, sweep_before_us: int | None = None
) -> bool:
    """Delete a session, and the captured content that belongs to no other session.

    The deletion runs in steps, so that others can write in between. Content that is used again meanwhile is kept.
    """

    def work(statements: Statements) -> bool:
        runs = runs_in(statements, session_id)
        erase_words(statements, session_id)
        if not delete_sessions(statements, [session_id]):
            return False
        note_erasure(statements, Erasure(at_us=at_us, session_id=session_id, runs=runs))
        note_forgotten(statements)
        return True

    found = await database.write(work)
    await sweep_bodies(database, at_us + 1 if sweep_before_us is None else sweep_before_us)
    return found


def references_in(body: bytes) -> list[bytes]:
    """The hashes of the bodies that a body refers to."""
    return [bytes.fromhex(name.decode()) for name in _REFERENCE.findall(body)]


async def sweep_bodies(database: Database, before_us: int) -> None:
    """Delete and erase all bodies that were last used before a given time and that no session needs."""
    needed = await database.look(lambda statements: needed_bodies(statements, before_us))
    place = 0
    while True:
        _, place = await database.write(partial(delete_unneeded, before_us=before_us, needed=needed, after=place))
        if not place:
            break
    if needed.spared:
        await database.write(partial(delete_spared, before_us=before_us, some=needed.spared))


def delete_spared(statements: Statements, before_us: int, some: Sequence[int]) -> int:
    """Delete and erase the bodies in `Needed.spared` that no session needs. Other writers wait."""
    needed = needed_bodies(statements, before_us).hashes
    gone = 0
    with statements.erasing():
        for number in some:
            rows = statements.run("SELECT hash FROM content WHERE id = ? AND last_us < ?", (number, before_us))
            if rows and bytes(rows[0][0]) not in needed:
                gone += statements.change("DELETE FROM content WHERE id = ?", (number,))
    return gone


def needed_bodies(statements: Statements, before_us: int) -> Needed:
    """Return all bodies from before a given time that a session refers to, without writing.

    A body that is used again gets a later time, so only old rows are read.
    """
    ((moment,),) = statements.run(f"SELECT {statements.dialect.moment}")
    rows: list[Row] = statements.run(
        """
        SELECT hash FROM session_messages WHERE ts_us < :before AND hash IS NOT NULL
         UNION
        SELECT hash FROM session_setups WHERE ts_us < :before AND hash IS NOT NULL
        """,
        {"before": before_us},
    )
    found: set[bytes] = set()
    pending = [bytes(digest) for (digest,) in rows]
    while pending:
        digest = pending.pop()
        if digest in found:
            continue
        found.add(digest)
        for (body,) in statements.run("SELECT body FROM content WHERE hash = ?", (digest,)):
            pending += references_in(body)
    return Needed(found, str(moment), [])


def delete_unneeded(statements: Statements, before_us: int, needed: Needed, after: int) -> tuple[int, int]:
    """Delete and erase some bodies that were last used before a given time and that no session needs.

    The caller holds a transaction.
    """
    untouched = statements.dialect.untouched_since
    rows = statements.run(
        f"SELECT id, hash, {untouched} FROM content WHERE id > ? AND last_us < ? ORDER BY id LIMIT ?",
        (needed.moment, after, before_us, BODIES_AT_ONCE),
    )
    with statements.erasing():
        unneeded = [(number, old) for number, digest, old in rows if bytes(digest) not in needed.hashes]
        gone = [number for number, old in unneeded if old]
        needed.spared.extend(number for number, old in unneeded if not old)
        statements.run_many("DELETE FROM content WHERE id = ?", [(number,) for number in gone])
    return len(gone), rows[-1][0] if rows else 0


# --- The record of deletions ---
#
# The record lists deleted sessions, and content deleted by age, but not retention. From a trace file's record,
# shippers repeat the deletions in shared stores. With its own record, a shared store rejects content that shippers
# would bring back. A row is written in the transaction of its deletion, and is never removed.


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """One deletion: of a session, or of all content that was last used before a given time."""

    key: str = ""
    """An identifier that is unique among all deletions; empty until the deletion is recorded."""
    at_us: int
    """The time of the deletion, in microseconds UTC."""
    number: int = 0
    """The number of the deletion in its file. Later deletions have higher numbers."""
    event: int = 0
    """The number of the file's last event at the time of the deletion."""
    session_id: str | None = None
    """The id of the deleted session; None for a deletion by age."""
    before_us: int | None = None
    """The time limit of a deletion by age, in microseconds UTC; None for the deletion of a session."""
    runs: tuple[str, ...] = ()
    """The ids of the runs that have messages of the session in the file."""


def note_erasure(statements: Statements, erasure: Erasure) -> None:
    """Record a deletion. The caller holds the transaction of the deletion."""
    statements.run(
        """
        INSERT INTO erasures (key, at_us, event, session_id, before_us, runs)
        SELECT ?, ?, coalesce(max(id), 0), ?, ?, ? FROM events
        """,
        (
            secrets.token_hex(16),
            erasure.at_us,
            erasure.session_id,
            erasure.before_us,
            msgspec.json.encode(erasure.runs).decode(),
        ),
    )


def runs_in(statements: Statements, session_id: str) -> tuple[str, ...]:
    rows = statements.run(
        """
        SELECT run_id FROM runs
         WHERE id IN (SELECT run FROM session_messages WHERE session_id = :session
                       UNION SELECT run FROM session_setups WHERE session_id = :session
                       UNION SELECT run FROM events WHERE session_id = :session)
         ORDER BY id
        """,
        {"session": session_id},
    )
    return tuple(run_id for (run_id,) in rows)


def erasures_after(statements: Statements, number: int, limit: int) -> list[Erasure]:
    """The deletions in a file with numbers above `number`, in order."""
    rows = statements.run(
        "SELECT id, key, at_us, event, session_id, before_us, runs FROM erasures WHERE id > ? ORDER BY id LIMIT ?",
        (number, limit),
    )
    return [
        Erasure(
            key=key,
            at_us=at_us,
            number=number,
            event=event,
            session_id=session_id,
            before_us=before_us,
            runs=msgspec.json.decode(runs, type=tuple[str, ...]),
        )
        for number, key, at_us, event, session_id, before_us, runs in rows
    ]


def next_boundary(statements: Statements, event: int) -> int | None:
    """The number of the last event before the next deletion of a session, from an event on; None if none."""
    ((boundary,),) = statements.run(
        "SELECT min(event) FROM erasures WHERE session_id IS NOT NULL AND event >= ?", (event,)
    )
    return None if boundary is None else int(boundary)


def erased_since(statements: Statements, event: int, sessions: Collection[str]) -> set[str]:
    """The given sessions that were deleted after an event was stored."""
    rows: list[Row] = statements.run(
        f"SELECT session_id FROM erasures WHERE event >= ? AND session_id IN ({placeholders(len(sessions))})",
        (event, *sessions),
    )
    return {session_id for (session_id,) in rows}

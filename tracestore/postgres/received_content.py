"""Captured content in a shipment, and deletions."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping

import msgspec

from callboard.bus.events.sessions import SessionCreated

from ..gateway import forget_kept_before
from ..shipping.shipment import SESSION, TOPIC, TS_US, Origin, SessionContent, Shipment
from ..sql.connection import Row, placeholders
from ..sql.content import DROP_REPLACED_MESSAGES, ENTER_BODY, ENTER_SETUP, MESSAGE_COLUMNS, REPLACE_MESSAGE
from ..sql.events import branch, is_anothers, is_recorded
from ..sql.expiry import (
    Erasure,
    delete_sessions,
    erase_old_words,
    erase_words,
    forget_names,
    references_in,
    sweep_bodies,
)
from .database import EVER_US, Database
from .statements import Statements, clean_text

# --- Erasing received content ---
#
# Deletions in a trace file are repeated in the shared store, and later shipments don't restore the content.
#
# - A file sends its deletions before later events. Each deletion is executed once, even if it is sent again or the
#   file was renamed. It affects only content from that file. A session of the same name from another file is kept.
# - A session that was deleted here is rejected until a session of that name starts again. From then on, the
#   session is accepted again, and so are messages of other runs (``SESSION.RUN``) after the deletion.
# - If a shipment was read before a deletion in its file and arrives after it, the deleted content is left out.


class Barrier(msgspec.Struct, frozen=True):
    """The deleted content that a shipment must not restore."""

    sessions: frozenset[str] = frozenset()
    """The names of the deleted sessions in this store."""
    before_us: int = 0
    """The time before which content was deleted, in microseconds UTC; 0 if no content was deleted by age."""
    branches: Mapping[str, int] = {}
    """For each restarted session, the time up to which messages of its branches stay deleted."""

    def keeps_out(self, name: str, ts_us: int) -> bool:
        """Whether a message was deleted. `name` is the session's name in this store."""
        return name in self.sessions or ts_us < self.before_us or ts_us <= self.branches.get(name, 0)


OPEN = Barrier()
"""The barrier of a store without deletions."""


# --- Deletions of a file ---


async def erase(database: Database, origin: Origin, erasures: Collection[Erasure]) -> None:
    """Repeat a file's deletions in this store. Then delete bodies that no message uses. Raises StoreError."""
    if await database.write(lambda statements: _delete(statements, origin, erasures)):
        await sweep_bodies(database, EVER_US)
    await database.write(lambda statements: _note_done(statements, origin, erasures))


def _delete(statements: Statements, origin: Origin, erasures: Iterable[Erasure]) -> bool:
    """Delete the content that is not yet deleted. Return whether there was any."""
    pending = False
    for erasure in erasures:
        session_id = None if erasure.session_id is None else clean_text(erasure.session_id)
        place = (origin.name, erasure.number, erasure.event)
        ((done,),) = statements.run(_ENTER, (erasure.key, erasure.at_us, *place, session_id, erasure.before_us))
        if done:
            continue
        pending = True
        if session_id is not None:
            _delete_session(statements, origin, session_id, erasure.runs)
        if erasure.before_us is not None:
            after = 0
            while after := erase_old_words(statements, erasure.before_us, after, origin.name):
                pass
            forget_names(statements, erasure.before_us, origin.name)
            # a cluster's gateways store this content in this database
            forget_kept_before(statements, erasure.before_us)
            for table in ("session_messages", "session_setups"):
                statements.run(
                    f"DELETE FROM {table} WHERE ts_us < ? AND run IN (SELECT id FROM runs WHERE shipped_from = ?)",
                    (erasure.before_us, origin.name),
                )
    return pending


def _delete_session(statements: Statements, origin: Origin, session_id: str, runs_here: Collection[str]) -> None:
    """Delete a session of a file, under the session's name in this store."""
    runs = [clean_text(run) for run in runs_here]
    names = [session_id, *(f"{session_id}.{run}" for run in runs)]
    owners: dict[str, bool] = dict(
        statements.run(
            f"""
            SELECT s.session_id,
                   coalesce(r.shipped_from = ? OR r.run_id IN ({placeholders(len(runs)) or "NULL"}), FALSE)
              FROM session_setups AS s JOIN runs AS r ON r.id = s.run
             WHERE s.session_id IN ({placeholders(len(names))})
            """,
            (origin.name, *runs, *names),
        )
    )
    erase_words(statements, session_id, origin.name)
    if owners.get(session_id, True):
        delete_sessions(statements, [session_id])
    else:  # in this store, the name belongs to a session of another file
        delete_sessions(statements, [name for name, is_ours in owners.items() if is_ours])
        statements.run(
            "DELETE FROM session_messages WHERE session_id = ?"
            " AND run IN (SELECT id FROM runs WHERE shipped_from = ?)",
            (session_id, origin.name),
        )


def _note_done(statements: Statements, origin: Origin, erasures: Collection[Erasure]) -> None:
    statements.run_many("UPDATE erasures SET swept = 1 WHERE key = ?", [(each.key,) for each in erasures])
    statements.run(_MARK, (origin.name, origin.host, origin.file, max(each.number for each in erasures)))


_ENTER = """
    INSERT INTO erasures (key, at_us, origin, number, event, session_id, before_us, runs, swept)
    VALUES (?, ?, ?, ?, ?, ?, ?, '[]', 0)
    ON CONFLICT (key) DO UPDATE SET origin = excluded.origin, number = excluded.number
    RETURNING swept
"""
_MARK = """
    INSERT INTO shipping (origin, event, run_id, seq, host, file, shipped_at, erasure)
    VALUES (?, 0, '', 0, ?, ?, clock_timestamp(), ?)
    ON CONFLICT (origin) DO UPDATE SET erasure = excluded.erasure
"""


# --- Barriers of shipments ---


def barrier_for(statements: Statements, origin: Origin, shipment: Shipment) -> Barrier:
    """The deleted content that a shipment must not restore.

    If a session starts again in the shipment, later content of the session is accepted.
    """
    names = _names(shipment)
    started = _starts_of(shipment)
    found = statements.run(
        """
        SELECT session_id, before_us, at_us, key, origin IS NULL AS is_here FROM erasures
         WHERE (origin IS NULL OR (origin = ? AND number > ?))
           AND (session_id IS NULL
                OR session_id IN (SELECT jsonb_array_elements_text(CAST(? AS jsonb)) COLLATE "C"))
        """,
        (origin.name, shipment.erased, msgspec.json.encode(list(names)).decode()),
    )
    blocked, before_us = set(), 0
    branches: dict[str, int] = {}
    for session_id, until_us, at_us, key, is_here in found:
        if session_id is None:
            before_us = max(before_us, until_us)
        elif until_us is not None or (is_here and started.get(names[session_id], at_us) > at_us):
            if until_us is None:
                statements.run("UPDATE erasures SET before_us = at_us WHERE key = ?", (key,))
            own_names = [name for name, session in names.items() if session == session_id and name != session]
            branches.update((name, max(at_us, branches.get(name, 0))) for name in own_names)
        else:
            blocked.add(session_id)
    return Barrier(frozenset(blocked), before_us, branches)


def _names(shipment: Shipment) -> dict[str, str]:
    """The names that a shipment's sessions may have in this store, each with the session's own name."""
    names = {session_id: session_id for session_id in shipment.sessions}
    if shipment.content is not None:
        for session_id, run_id, *_ in shipment.content.setups:
            names[session_id] = session_id
            names[f"{session_id}.{run_id}"] = session_id
        for session_id, _, run_id, *_ in shipment.content.messages:
            names[f"{session_id}.{run_id}"] = session_id
    return names


def _starts_of(shipment: Shipment) -> Mapping[str, int]:
    """The times at which sessions start in a shipment, the latest of each."""
    started: dict[str, int] = {}
    topics, sessions, moments = (shipment.read.columns[column] for column in (TOPIC, SESSION, TS_US))
    for place in shipment.projected:
        if topics[place] == SessionCreated.topic_of() and sessions[place] is not None:
            started[sessions[place]] = max(moments[place], started.get(sessions[place], 0))
    return started


# --- Content of a shipment ---
#
# Content is stored unchanged. Messages from nodes of a cluster follow the claims of their session (see
# `tracestore.sql.events`), from any file.


def referred_to(bodies: Iterable[Row], digests: Iterable[bytes | None]) -> list[Row]:
    """Return the bodies of these digests, and the bodies that they refer to."""
    there = {bytes(body[0]): body for body in bodies}
    found: dict[bytes, Row] = {}
    waiting = [bytes(digest) for digest in digests if digest is not None]
    while waiting:
        digest = waiting.pop()
        if digest in there and digest not in found:
            found[digest] = there[digest]
            waiting += references_in(there[digest][2])
    return list(found.values())


class ContentStoring:
    """Stores captured content. A session of another file is kept under a second name."""

    def __init__(
        self,
        statements: Statements,
        origin: Origin,
        content: SessionContent,
        new: set[Row] | None,
        barrier: Barrier = OPEN,
        living: Container[str] | None = None,
    ) -> None:
        self._statements = statements
        self._origin = origin
        self._content = content
        self._new = new
        self._barrier = barrier
        self._living = living
        self._numbers: dict[str, int] = {}

    def store(self) -> None:
        setups = [setup for setup in self._content.setups if self._living is None or setup[0] in self._living]
        names = {str(setup[0]): self._name_of(setup) for setup in setups}
        named = [(names[setup[0]], setup) for setup in setups]
        accepted = [(name, setup) for name, setup in named if name and not self._barrier.keeps_out(name, setup[3])]
        branches = {setup[0] for name, setup in accepted if not setup[2] and not self._is_known(name)}
        digests = [setup[5] for _, setup in accepted]
        for name, setup in accepted:
            self._store_setup(name, setup)
        for message in self._content.messages:
            number = self._number(message[2], message[4])
            if self._barrier.keeps_out(message[0], message[4]):
                continue
            if message[0] in branches or self._new is None or (number, message[3]) in self._new:
                into = self._name_for(message, number, names.get(message[0]))
                if into is not None and not self._barrier.keeps_out(into, message[4]):
                    self._store_message(into, number, message)
                    digests.append(message[5])
        self._statements.run_many(ENTER_BODY, referred_to(self._content.bodies, digests))

    def _name_of(self, setup: Row) -> str | None:
        """The session's name in this store. It differs from the name in the file if another file's run has a
        session of that name. None if the session now has another owner.
        """
        session_id, run_id, _, ts_us, *_, epoch = setup
        if epoch:
            late = is_anothers(self._statements, session_id, self._number(run_id, ts_us), epoch)
            return None if late else session_id
        owners = self._statements.run(
            "SELECT r.shipped_from FROM session_setups AS s JOIN runs AS r ON r.id = s.run WHERE s.session_id = ?",
            (session_id,),
        )
        return session_id if not owners or owners[0][0] == self._origin.name else f"{session_id}.{run_id}"

    def _name_for(self, message: Row, number: int, session_here: str | None) -> str | None:
        """The name of the session that stores a message; None if the message is stored already, or was deleted."""
        session_id, position, run_id, seq, ts_us, digest, message_id, *_, epoch = message
        if not epoch:
            return session_here or str(session_id)
        if not is_anothers(self._statements, session_id, number, epoch):
            return str(session_id)
        if is_recorded(self._statements, session_id, position, message_id, digest):
            return None
        name = f"{session_id}.{run_id}"
        if self._barrier.keeps_out(name, ts_us):
            return None
        return branch(self._statements, session_id, name, (number, seq, ts_us), position, epoch)

    def _is_known(self, name: str) -> bool:
        return bool(self._statements.run("SELECT 1 FROM session_setups WHERE session_id = ?", (name,)))

    def _number(self, run_id: str, ts_us: int) -> int:
        if run_id not in self._numbers:
            ((number,),) = self._statements.run(
                """
                INSERT INTO runs (run_id, first_us, last_us, committed_seq, shipped_from) VALUES (?, ?, ?, 0, ?)
                ON CONFLICT (run_id) DO UPDATE SET run_id = excluded.run_id RETURNING id
                """,
                (run_id, ts_us, ts_us, self._origin.name),
            )
            self._numbers[run_id] = int(number)
        return self._numbers[run_id]

    def _store_setup(self, name: str, setup: Row) -> None:
        _, run_id, seq, ts_us, history, digest, withheld, epoch = setup
        run = self._number(run_id, ts_us)
        values = (name, run, seq, ts_us, history, digest, withheld, epoch)
        if self._statements.run(f"{ENTER_SETUP} RETURNING 1", values):
            self._statements.run(DROP_REPLACED_MESSAGES, (name, history, run, seq))

    def _store_message(self, name: str, run: int, message: Row) -> None:
        _, position, _, *rest = message
        self._statements.run(
            f"INSERT INTO session_messages ({MESSAGE_COLUMNS}) VALUES ({placeholders(10)}) {REPLACE_MESSAGE}",
            (name, position, run, *rest),
        )

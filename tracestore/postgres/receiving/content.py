"""Captured content that comes with a shipment. It is kept as it stands in the file that it comes from.

What nodes of a cluster have said goes by the claims of its session (see `tracestore.sql.session_owner`), wherever
it comes from.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ...shipping.shipment import Origin, SessionContent
from ...sql.connection import Row
from ...sql.session_owner import branch, is_anothers, is_said
from ...sql.upkeep.expiry import references_in
from ..statements import Statements
from .erasing import OPEN, Barrier

_ENTER_BODY = """
    INSERT INTO content (hash, last_us, body) VALUES (?, ?, ?)
    ON CONFLICT (hash) DO UPDATE SET last_us = greatest(content.last_us, excluded.last_us)
"""


def referred_to(bodies: Iterable[Row], digests: Iterable[bytes | None]) -> list[Row]:
    """Those of some bodies that are named, and those that they name."""
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
    """Captured content on its way into the store. A session that is another file's is kept under a second name.

    Args:
        statements: The connection, in the transaction of the events.
        origin: The file.
        content: The content.
        new: The events that are new here, by the number of the run and their own; None is all.
        barrier: What must not come back.
        living: The sessions that new events speak of; None is all.
    """

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
        """Store it."""
        setups = [setup for setup in self._content.setups if self._living is None or setup[0] in self._living]
        names = {str(setup[0]): self._name_of(setup) for setup in setups}
        named = [(names[setup[0]], setup) for setup in setups]
        kept = [(name, setup) for name, setup in named if name and not self._barrier.keeps_out(name, setup[3])]
        branches = {setup[0] for name, setup in kept if not setup[2] and not self._is_known(name)}
        digests = [setup[5] for _, setup in kept]
        for name, setup in kept:
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
        self._statements.run_many(_ENTER_BODY, referred_to(self._content.bodies, digests))

    def _name_of(self, setup: Row) -> str | None:
        """The name of a session here: its own, unless a run from elsewhere has a session of that name.

        Returns:
            None for the setup of a claim that is over.
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
        """The name of the session in which a message is kept; None if it is there already, or was deleted.

        Args:
            message: The message.
            number: The number of its run.
            session_here: The name of its session here, where that goes by the origin.
        """
        session_id, position, run_id, seq, ts_us, digest, message_id, *_, epoch = message
        if not epoch:
            return session_here or str(session_id)
        if not is_anothers(self._statements, session_id, number, epoch):
            return str(session_id)
        if is_said(self._statements, session_id, position, message_id, digest):
            return None
        name = f"{session_id}.{run_id}"
        if self._barrier.keeps_out(name, ts_us):
            return None
        return branch(self._statements, session_id, name, (number, seq, ts_us), position, epoch)

    def _is_known(self, name: str) -> bool:
        return bool(self._statements.run("SELECT 1 FROM session_setups WHERE session_id = ?", (name,)))

    def _number(self, run_id: str, ts_us: int) -> int:
        """The number of a run, which may be one whose events are still to come."""
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
        changed = self._statements.run(
            """
            INSERT INTO session_setups (session_id, run, seq, ts_us, history, hash, withheld, epoch)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (session_id) DO UPDATE SET
                run = excluded.run, seq = excluded.seq, ts_us = excluded.ts_us, history = excluded.history,
                hash = excluded.hash, withheld = excluded.withheld, epoch = excluded.epoch
             WHERE excluded.run <> session_setups.run OR excluded.seq > session_setups.seq
            RETURNING 1
            """,
            (name, run, seq, ts_us, history, digest, withheld, epoch),
        )
        if changed:
            self._statements.run(
                "DELETE FROM session_messages WHERE session_id = ? AND position >= ? AND (run <> ? OR seq < ?)",
                (name, history, run, seq),
            )

    def _store_message(self, name: str, run: int, message: Row) -> None:
        _, position, _, seq, ts_us, digest, message_id, metadata, withheld, epoch = message
        self._statements.run(
            """
            INSERT INTO session_messages
                   (session_id, position, run, seq, ts_us, hash, message_id, metadata, withheld, epoch)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (session_id, position) DO UPDATE SET
                run = excluded.run, seq = excluded.seq, ts_us = excluded.ts_us, hash = excluded.hash,
                message_id = excluded.message_id, metadata = excluded.metadata, withheld = excluded.withheld,
                epoch = excluded.epoch
             WHERE excluded.run <> session_messages.run OR excluded.seq > session_messages.seq
            """,
            (name, position, run, seq, ts_us, digest, message_id, metadata, withheld, epoch),
        )

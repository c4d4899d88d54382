"""Deletions and shipments: what was deleted in a trace file goes here, too, and nothing brings back what is gone.

- A file tells its deletions before the events behind them. Each is done once, however often it is told, and
  whatever the file is called by then. It reaches what came from that file alone: a session of the same name from
  elsewhere stays.
- What was deleted here stays away until a session of that name begins anew. From then on that session is let in,
  and what a run from elsewhere says beside it (``SESSION.RUN``) as far as it was said after the deletion.
- A shipment that was read before a deletion in its file, and comes after it, comes without what was deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from callboard.bus.events.sessions import SessionCreated

from ...shipping.shipment import SESSION, TOPIC, TS_US, Origin, Shipment
from ...sql.connection import placeholders
from ...sql.upkeep.erasures import Erasure
from ...sql.upkeep.expiry import delete_sessions, erase_old_words, erase_words, forget_names, sweep_bodies
from ..clean import clean_text
from ..database import EVER_US, Database
from ..statements import Statements


class Barrier(msgspec.Struct, frozen=True):
    """What a shipment must not bring back."""

    sessions: frozenset[str] = frozenset()
    """The names of sessions here."""
    before_us: int = 0
    """The moment before which content was deleted, in microseconds UTC; 0 if none was."""
    branches: Mapping[str, int] = {}
    """The moments up to which what branches say was deleted with their sessions, which have begun anew since."""

    def keeps_out(self, name: str, ts_us: int) -> bool:
        """Whether what was said at a moment in a session, by its name here, must not come back."""
        return name in self.sessions or ts_us < self.before_us or ts_us <= self.branches.get(name, 0)


OPEN = Barrier()
"""Nothing was deleted."""


# -- Deletions of a file


async def erase(database: Database, origin: Origin, erasures: Collection[Erasure]) -> None:
    """Do deletions of a file here, too, with all bodies that nobody needs then. Raises StoreError."""
    if await database.write(lambda statements: _delete(statements, origin, erasures)):
        await sweep_bodies(database, EVER_US)
    await database.write(lambda statements: _note_done(statements, origin, erasures))


def _delete(statements: Statements, origin: Origin, erasures: Iterable[Erasure]) -> bool:
    """Delete what was not yet deleted. Returns whether there was any such."""
    pending = False
    for erasure in erasures:
        ((done,),) = statements.run(_ENTER, _values(origin, erasure))
        if done:
            continue
        pending = True
        if erasure.session_id is not None:
            _delete_session(statements, origin, clean_text(erasure.session_id), erasure.runs)
        if erasure.before_us is not None:
            after = 0
            while after := erase_old_words(statements, erasure.before_us, after, origin.name):
                pass
            forget_names(statements, erasure.before_us, origin.name)
            for table in ("session_messages", "session_setups"):
                statements.run(
                    f"DELETE FROM {table} WHERE ts_us < ? AND run IN (SELECT id FROM runs WHERE shipped_from = ?)",
                    (erasure.before_us, origin.name),
                )
    return pending


def _delete_session(statements: Statements, origin: Origin, session_id: str, said_by: Collection[str]) -> None:
    """Delete a session of a file, whatever it is called here."""
    runs = [clean_text(run) for run in said_by]
    names = [session_id, *(f"{session_id}.{run}" for run in runs)]
    owners: dict[str, bool] = dict(
        statements.run(
            f"""
            SELECT s.session_id, coalesce(r.shipped_from = ?, FALSE) OR r.run_id IN ({placeholders(len(runs))})
              FROM session_setups AS s JOIN runs AS r ON r.id = s.run
             WHERE s.session_id IN ({placeholders(len(names))})
            """,
            (origin.name, *runs, *names),
        )
        if runs
        else statements.run(
            """
            SELECT s.session_id, coalesce(r.shipped_from = ?, FALSE)
              FROM session_setups AS s JOIN runs AS r ON r.id = s.run WHERE s.session_id = ?
            """,
            (origin.name, session_id),
        )
    )
    erase_words(statements, session_id, origin.name)
    if owners.get(session_id, True):
        delete_sessions(statements, [session_id])
    else:  # another file's is called so
        delete_sessions(statements, [name for name, is_ours in owners.items() if is_ours])
        statements.run(
            "DELETE FROM session_messages WHERE session_id = ?"
            " AND run IN (SELECT id FROM runs WHERE shipped_from = ?)",
            (session_id, origin.name),
        )


def _note_done(statements: Statements, origin: Origin, erasures: Collection[Erasure]) -> None:
    statements.run_many("UPDATE erasures SET swept = 1 WHERE key = ?", [(each.key,) for each in erasures])
    statements.run(_MARK, (origin.name, origin.host, origin.file, max(each.number for each in erasures)))


def _values(origin: Origin, erasure: Erasure) -> tuple[str | int | None, ...]:
    session_id = None if erasure.session_id is None else clean_text(erasure.session_id)
    return (erasure.key, erasure.at_us, origin.name, erasure.number, erasure.event, session_id, erasure.before_us)


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


# -- Shipments


def barrier_for(statements: Statements, origin: Origin, shipment: Shipment) -> Barrier:
    """What a shipment must not bring back. A session that begins anew in it is let in from then on."""
    names = _names(shipment)
    begun = _begun(shipment)
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
        elif until_us is not None or (is_here and begun.get(names[session_id], at_us) > at_us):
            if until_us is None:
                statements.run("UPDATE erasures SET before_us = at_us WHERE key = ?", (key,))
            own = [name for name, session in names.items() if session == session_id and name != session]
            branches.update((name, max(at_us, branches.get(name, 0))) for name in own)
        else:
            blocked.add(session_id)
    return Barrier(frozenset(blocked), before_us, branches)


def _names(shipment: Shipment) -> dict[str, str]:
    """The names that the sessions of a shipment may have here, and their own."""
    names = {session_id: session_id for session_id in shipment.sessions}
    if shipment.content is not None:
        for session_id, run_id, *_ in shipment.content.setups:
            names[session_id] = session_id
            names[f"{session_id}.{run_id}"] = session_id
        for session_id, _, run_id, *_ in shipment.content.messages:
            names[f"{session_id}.{run_id}"] = session_id
    return names


def _begun(shipment: Shipment) -> Mapping[str, int]:
    """The times at which sessions begin in a shipment, the latest of each."""
    begun: dict[str, int] = {}
    topics, sessions, moments = (shipment.read.columns[column] for column in (TOPIC, SESSION, TS_US))
    for place in shipment.projected:
        if topics[place] == SessionCreated.topic_of() and sessions[place] is not None:
            begun[sessions[place]] = max(moments[place], begun.get(sessions[place], 0))
    return begun

"""Captured content: bodies by their hashes, and sessions as rows of hashes.

- `content` has each body once, with the time of its last use. Sessions share bodies.
- `session_messages` has the place of each body in each session, with the message's id and metadata. A message that
  may not be stored has a row with the reason, and no hash.
- `session_setups` has the latest setup of each session, and the length of the history at that time. Later messages
  belong to an earlier session of the same name, and are deleted. The table also has the owner of the session (see
  `tracestore.sql.events`).

Events are ordered by their numbers in the run, because the clock may be set back. An event that is already stored
changes nothing. Expired content, both bodies and rows, is deleted by its age only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from callboard.bus.events import Envelope
from callboard.bus.log import Log
from callboard.bus.values.messages import Message, SessionSetup

from ..codec import storable_text
from ..rows import NOTHING_SAID, SavedSession
from ..writing.content import (
    Bodies,
    CapturedMessage,
    CapturedSetup,
    bodies_of,
    bodies_of_setup,
    decode_metadata,
    encode_metadata,
    message_of,
    setup_of,
)
from .call_rows import tags_of
from .connection import Row, Statements, greater
from .events import branch, is_anothers, is_recorded

_log = Log("tracestore.content")

# --- Writing content ---

# An existing body is written again, so that a concurrent deletion detects the new use.
ENTER_BODY = f"""
    INSERT INTO content (hash, last_us, body) VALUES (?, ?, ?)
    ON CONFLICT (hash) DO UPDATE SET last_us = {greater("content.last_us", "excluded.last_us")}
"""
ENTER_SETUP = """
    INSERT INTO session_setups (session_id, run, seq, ts_us, history, hash, withheld, epoch)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (session_id) DO UPDATE SET
        run = excluded.run, seq = excluded.seq, ts_us = excluded.ts_us, history = excluded.history,
        hash = excluded.hash, withheld = excluded.withheld, epoch = excluded.epoch
     WHERE excluded.run <> session_setups.run OR excluded.seq > session_setups.seq
"""
DROP_REPLACED_MESSAGES = (
    "DELETE FROM session_messages WHERE session_id = ? AND position >= ? AND (run <> ? OR seq < ?)"
)
"""Deletes the messages that a setup has replaced. The parameters are its session, history, run and seq."""

MESSAGE_COLUMNS = "session_id, position, run, seq, ts_us, hash, message_id, metadata, withheld, epoch"
REPLACE_MESSAGE = """
    ON CONFLICT (session_id, position) DO UPDATE SET
        run = excluded.run, seq = excluded.seq, ts_us = excluded.ts_us, hash = excluded.hash,
        message_id = excluded.message_id, metadata = excluded.metadata, withheld = excluded.withheld,
        epoch = excluded.epoch
     WHERE excluded.run <> session_messages.run OR excluded.seq > session_messages.seq
"""


def store_content(statements: Statements, captured: Sequence[Envelope], runs: Mapping[str, int]) -> None:
    """Store the captured content of a batch, in its transaction.

    The rest of the batch is stored even if some content can't be stored.

    Call this function before the events are stored, because it skips events that are already stored.
    """
    last_us: dict[bytes, int] = {}
    bodies: Bodies = {}
    for envelope in captured:
        run_id = storable_text(envelope.run_id)
        event, moment = envelope.data, (runs[run_id], envelope.seq, envelope.ts_us)
        if statements.run("SELECT 1 FROM events WHERE run = ? AND seq = ?", moment[:2]):
            continue
        session_id = storable_text(envelope.session_id or "")
        if not isinstance(event, CapturedMessage | CapturedSetup):
            continue
        digest, made, withheld = _bodies(event)
        begins = isinstance(event, CapturedSetup) and event.begins
        if is_anothers(statements, session_id, moment[0], event.epoch, begins=begins):
            if _can_be_dropped(statements, session_id, event, digest):
                continue
            history = event.position if isinstance(event, CapturedMessage) else event.history
            session_id = branch(statements, session_id, f"{session_id}.{run_id}", moment, history, event.epoch)
        if isinstance(event, CapturedMessage):
            _insert_message(statements, session_id, moment, event, digest, withheld)
        else:
            _insert_setup(statements, session_id, moment, event, digest, withheld)
        bodies |= made
        for each in made:
            last_us[each] = max(last_us.get(each, 0), envelope.ts_us)
    statements.run_many(ENTER_BODY, [(digest, last_us[digest], body) for digest, body in bodies.items()])


def _can_be_dropped(
    statements: Statements, session_id: str, event: CapturedMessage | CapturedSetup, digest: bytes | None
) -> bool:
    """Whether a former owner's content can be dropped.

    This is true for an outdated setup, and for a message that the next owner has already restored.
    """
    if not event.epoch or isinstance(event, CapturedSetup):
        return bool(event.epoch)
    return is_recorded(statements, session_id, event.position, _message_id(event.message), digest)


def _message_id(message: Message) -> str | None:
    return None if message.id is None else storable_text(message.id)


def _bodies(event: CapturedMessage | CapturedSetup) -> tuple[bytes | None, Bodies, str | None]:
    """The hash of a message or setup, and its bodies. Without bodies, the reason."""
    try:
        if isinstance(event, CapturedMessage):
            if event.withheld is not None:
                return None, {}, event.withheld
            return *bodies_of(event.message), None
        assert event.setup is not None
        return *bodies_of_setup(event.setup), event.withheld
    except (TypeError, ValueError, RecursionError) as error:
        # A host has put an object that is not JSON into the content. The other events of the batch must not be
        # lost.
        _log.error("content_unstorable", error=type(error).__name__)
        return None, {}, f"can't be stored: {type(error).__name__}"


def _insert_message(
    statements: Statements,
    session_id: str,
    moment: tuple[int, int, int],
    event: CapturedMessage,
    digest: bytes | None,
    withheld: str | None,
) -> None:
    message, (run, seq, ts_us) = event.message, moment
    statements.run(
        f"""
        INSERT INTO session_messages ({MESSAGE_COLUMNS})
        SELECT :session, :position, :run, :seq, :ts, :hash, :message_id, :metadata, :withheld, :epoch
         WHERE NOT EXISTS (
                   SELECT 1 FROM session_setups
                    WHERE session_id = :session AND history <= :position AND run = :run AND seq > :seq
               )
        {REPLACE_MESSAGE}
        """,
        {
            "session": session_id,
            "position": event.position,
            "run": run,
            "seq": seq,
            "ts": ts_us,
            "hash": digest,
            "message_id": _message_id(message),
            "metadata": _metadata(message),
            "withheld": withheld,
            "epoch": event.epoch,
        },
    )


def _metadata(message: Message) -> str | None:
    if message.metadata is None:
        return None
    try:
        return encode_metadata(message.metadata).decode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        _log.error("metadata_unstorable", message_id=message.id, error=type(error).__name__)
        return None


def _insert_setup(
    statements: Statements,
    session_id: str,
    moment: tuple[int, int, int],
    event: CapturedSetup,
    digest: bytes | None,
    withheld: str | None,
) -> None:
    statements.run(ENTER_SETUP, (session_id, *moment, event.history, digest, withheld, event.epoch))
    statements.run(DROP_REPLACED_MESSAGES, (session_id, 0 if event.begins else event.history, *moment[:2]))


# --- Reading content ---


def load_session(statements: Statements, session_id: str) -> SavedSession | None:
    setups = statements.run(
        "SELECT history, hash, withheld FROM session_setups WHERE session_id = ?", (session_id,)
    )
    rows = statements.run(
        """
        SELECT position, hash, message_id, metadata, withheld
          FROM session_messages WHERE session_id = ? ORDER BY position
        """,
        (session_id,),
    )
    if not setups and not rows:
        return None
    session_rows = statements.run("SELECT tags, name FROM sessions WHERE session_id = ?", (session_id,))
    tags, name = session_rows[0] if session_rows else (None, None)
    fetch = BodyReader(statements)
    setup, withheld, missing = None, None, []
    if setups:
        ((history, digest, withheld),) = setups
        setup, why = _setup(digest, withheld, fetch)
    else:
        history, why = 0, "is not stored"
    if why is not None:
        missing.append(f"its setup {why}")
    messages: list[Message] = []
    stored = {row[0]: row for row in rows}
    for position in range(max([history, *(place + 1 for place in stored)])):
        message, why = _message(stored.get(position), fetch)
        if message is not None:
            messages.append(message)
        else:
            missing.append(f"message {position} {why}")
    if setups and not (messages or missing) and statements.run(_ASKED, (session_id,)):
        missing.append(NOTHING_SAID)
    return SavedSession(
        session_id=session_id,
        setup=setup,
        withheld=withheld,
        tags=tags_of(tags),
        name=name,
        messages=tuple(messages),
        missing=tuple(missing),
    )


_EXPIRED = "has expired or was lost"

_ASKED = """
    SELECT 1
      FROM session_setups AS s JOIN calls AS c ON c.session_id = s.session_id AND c.run = s.run
     WHERE s.session_id = ? AND c.ts_us >= s.ts_us AND c.status = 'completed'
     LIMIT 1
"""
"""Finds a call that was answered since the session was set up.

A call that was in progress when its process was killed doesn't count, because its turn added no message.
"""


class BodyReader:
    """Reads bodies by hash, each once. Raises KeyError for a body that is not stored."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._bodies: Bodies = {}

    def __call__(self, digest: bytes) -> bytes:
        if digest not in self._bodies:
            rows = self._statements.run("SELECT body FROM content WHERE hash = ?", (digest,))
            if not rows:
                raise KeyError(digest.hex())
            self._bodies[digest] = rows[0][0]
        return self._bodies[digest]


def _setup(
    digest: bytes | None, withheld: str | None, fetch: BodyReader
) -> tuple[SessionSetup | None, str | None]:
    if digest is None:
        return None, withheld or _EXPIRED
    try:
        return setup_of(fetch(digest)), None
    except KeyError:
        return None, _EXPIRED
    except ValueError as error:
        return None, f"can't be read by this version ({error})"


def _message(row: Row | None, fetch: BodyReader) -> tuple[Message | None, str | None]:
    if row is None:
        return None, _EXPIRED
    _, digest, message_id, metadata, withheld = row
    if digest is None:
        return None, f"was not stored ({withheld})"
    try:
        message = message_of(fetch(digest), fetch)
        message_metadata = None if metadata is None else decode_metadata(metadata.encode())
        return msgspec.structs.replace(message, id=message_id, metadata=message_metadata), None
    except KeyError:
        return None, _EXPIRED
    except ValueError as error:
        return None, f"can't be read by this version ({error})"

"""The ledger of imports: the imported calls of a trace, and the reading position in each file.

A call has one row in `imported_calls` for as long as the trace exists, even after the call was pruned. So if a
file is read again, no call is imported twice, and no pruned call returns. The rows are written in the transaction
of the call's event, and only if no other importer has changed them. So if two importers read the same files, each
call is imported once. After a kill, the trace has both the row and the event, or neither. The same check protects
deletions: a session that was just deleted, or a call that was just pruned, is not written.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.bus.events import Envelope

from ..rows import Imported, ImportedFile, Revision
from .connection import Database, Row, SqlValue, Statements, placeholders

_AT_ONCE = 400
"""The number of rows in one statement. Old versions of SQLite accept at most 999 parameters."""


class ImportConflict(Exception):
    """The trace has changed since the importer read it. Nothing was written."""


async def imported_calls(database: Database, request_ids: Sequence[str]) -> dict[str, Imported]:
    """The given calls that were imported before, by their ids."""
    found: dict[str, Imported] = {}
    for place in range(0, len(request_ids), _AT_ONCE):
        some = request_ids[place : place + _AT_ONCE]
        rows = await database.read(
            f"""
            SELECT i.request_id, i.revision,
                   EXISTS (SELECT 1 FROM calls AS c WHERE c.request_id = i.request_id AND c.attempt = 1)
              FROM imported_calls AS i
             WHERE i.request_id IN ({placeholders(len(some))})
            """,
            some,
        )
        found |= {request_id: Imported(int(revision), bool(stored)) for request_id, revision, stored in rows}
    return found


async def deleted_sessions(database: Database, session_ids: Sequence[str]) -> set[str]:
    """Return those of the given sessions that were deleted. An import must not restore them."""
    found: set[str] = set()
    for place in range(0, len(session_ids), _AT_ONCE):
        some = session_ids[place : place + _AT_ONCE]
        rows = await database.read(
            f"SELECT session_id FROM erasures WHERE session_id IN ({placeholders(len(some))})", some
        )
        found.update(name for (name,) in rows)
    return found


_FILE = tuple(ImportedFile.__struct_fields__)


async def imported_files(database: Database, source: str) -> dict[str, ImportedFile]:
    """The files that a source has read, by their paths."""
    rows = await database.read(f"SELECT {', '.join(_FILE)} FROM imported_files WHERE source = ?", (source,))
    files = (ImportedFile(**dict(zip(_FILE, row, strict=True))) for row in rows)
    return {file.path: file for file in files}


def note_import(
    statements: Statements,
    envelopes: Sequence[Envelope],
    revisions: Sequence[Revision],
    files: Sequence[ImportedFile],
) -> None:
    """Change the ledger. Call this in the transaction that stores the events. Raises ImportConflict if the ledger
    has changed since the caller read it, a session was deleted, or a call was pruned.
    """
    _refuse_deleted(statements, sorted({each.session_id for each in envelopes if each.session_id is not None}))
    corrected = {each.request_id for each in envelopes}
    ordered = sorted(revisions)  # sorted, so that two importers can't deadlock
    new = [each for each in ordered if each.before is None]
    for place in range(0, len(new), _AT_ONCE):
        some = new[place : place + _AT_ONCE]
        rows = ", ".join(["(?, CAST(? AS BIGINT))"] * len(some))
        values: list[SqlValue] = [value for each in some for value in (each.request_id, each.after)]
        entered = statements.change(
            f"INSERT INTO imported_calls (request_id, revision) VALUES {rows} ON CONFLICT DO NOTHING", values
        )
        if entered != len(some):
            raise ImportConflict
    for each in ordered:
        if each.before is not None and not statements.change(
            _UPDATE + (_AND_STORED if each.request_id in corrected else ""),
            (each.after, each.request_id, each.before),
        ):
            raise ImportConflict
    changes = ", ".join(f"{name} = excluded.{name}" for name in _FILE[2:])
    statements.run_many(
        f"""
        INSERT INTO imported_files ({", ".join(_FILE)}) VALUES ({placeholders(len(_FILE))})
        ON CONFLICT (source, path) DO UPDATE SET {changes}
        """,
        [[getattr(file, name) for name in _FILE] for file in files],
    )


_UPDATE = "UPDATE imported_calls SET revision = ? WHERE request_id = ? AND revision = ?"
_AND_STORED = """
   AND EXISTS (SELECT 1 FROM calls AS c WHERE c.request_id = imported_calls.request_id AND c.attempt = 1)
"""


def _refuse_deleted(statements: Statements, sessions: Sequence[str]) -> None:
    for place in range(0, len(sessions), _AT_ONCE):
        some = sessions[place : place + _AT_ONCE]
        rows: list[Row] = statements.run(
            f"SELECT 1 FROM erasures WHERE session_id IN ({placeholders(len(some))}) LIMIT 1", some
        )
        if rows:
            raise ImportConflict

"""The index of captured words: made and kept up by a search, and by nothing else.

Whoever never searches has no index and pays nothing for one. A search first takes in what was said since the last
one, in short transactions. Where content is deleted, its words go from the index in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from callboard.bus.errors import StoreError

from ..calls import SearchFilter
from ..rows import FoundMessage
from ..sql.connection import Database, Row, SqlValue, Statements
from ..writing.captured import Bodies, message_of
from .words import Term, terms_of, text_of, words_of

_AT_ONCE = 500
"""The number of messages that one transaction takes in."""


class Index(Protocol):
    """The part of an index that databases write differently."""

    def make(self, statements: Statements) -> None:
        """Make the index if there is none. The caller holds a transaction."""
        ...

    @property
    def missing(self) -> str:
        """A condition on ``content AS c``: whether a body is not in the index yet."""
        ...

    def put(self, statements: Statements, rows: Iterable[tuple[int, str]]) -> None:
        """Put the words of bodies into the index, by the numbers of the bodies."""
        ...

    @property
    def join(self) -> str:
        """The join of the index to ``content AS c``."""
        ...

    def matches(self, terms: Sequence[Term]) -> tuple[str, list[SqlValue]]:
        """The condition for what fits, with its values. At least one term must be there."""
        ...


async def search(database: Database, index: Index, where: SearchFilter) -> list[FoundMessage]:
    """See `Store.search`."""
    terms = () if where.text is None else terms_of(where.text)
    if where.text is not None and all(term.absent for term in terms):
        raise StoreError(f"there is no word to look for in {where.text!r}")
    if terms:
        await database.write(index.make)
        while await database.write(lambda statements: _take_in(statements, index)):
            pass
    return await database.look(lambda statements: _find(statements, index, where, terms))


def _take_in(statements: Statements, index: Index) -> bool:
    """Take in some messages. False if there were none left."""
    rows = statements.run(
        f"""
        SELECT c.id, c.body FROM content AS c
         WHERE c.hash IN (SELECT hash FROM session_messages) AND {index.missing}
         ORDER BY c.id LIMIT {_AT_ONCE}
        """
    )
    fetch = _Fetch(statements)
    index.put(statements, [(number, " ".join(words_of(fetch.text(body)))) for number, body in rows])
    return len(rows) == _AT_ONCE


def _find(statements: Statements, index: Index, where: SearchFilter, terms: Sequence[Term]) -> list[FoundMessage]:
    condition, values = index.matches(terms) if terms else ("1 = 1", [])
    conditions = [condition]
    for column, sign, value in (
        ("session_id", "=", where.session_id),
        ("ts_us", ">=", where.since_us),
        ("ts_us", "<", where.until_us),
    ):
        if value is not None:
            conditions.append(f"m.{column} {sign} ?")
            values.append(value)
    rows = statements.run(
        f"""
        SELECT m.session_id, m.position, m.message_id, m.ts_us, c.body
          FROM session_messages AS m JOIN content AS c ON c.hash = m.hash {index.join if terms else ""}
         WHERE {" AND ".join(conditions)}
         ORDER BY m.ts_us DESC, m.session_id, m.position DESC LIMIT ?
        """,
        (*values, where.limit),
    )
    fetch = _Fetch(statements)
    return [_found(row, fetch) for row in rows]


def _found(row: Row, fetch: _Fetch) -> FoundMessage:
    session_id, position, message_id, ts_us, body = row
    role, text = fetch.said(body)
    return FoundMessage(session_id, position, message_id, ts_us, role, text)


class _Fetch:
    """Reads messages, and the bodies that they are made of. What can't be read says nothing."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._known: Bodies = {}

    def text(self, body: bytes) -> str:
        return self.said(body)[1]

    def said(self, body: bytes) -> tuple[str, str]:
        """Who says what."""
        try:
            message = message_of(bytes(body), self._body)
        except (ValueError, KeyError):
            return "", ""
        return str(message.role), text_of(message)

    def _body(self, digest: bytes) -> bytes:
        if digest not in self._known:
            rows = self._statements.run("SELECT body FROM content WHERE hash = ?", (digest,))
            if not rows:
                raise KeyError(digest.hex())
            self._known[digest] = rows[0][0]
        return self._known[digest]

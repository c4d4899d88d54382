"""The index of words in captured content. Only searches build and update it.

A trace that is never searched has no index and no overhead. A search first indexes the content since the last
search, in short transactions. Deleting content also removes it from the index, in the same transaction.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from callboard.bus.errors import StoreError
from callboard.bus.values.content import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message

from .call_columns import SearchFilter
from .rows import FoundMessage
from .sql.connection import Database, SqlValue, Statements
from .sql.content import BodyReader
from .writing.content import message_of

_AT_ONCE = 500
"""The number of messages that one transaction indexes."""


class Index(Protocol):
    """The operations on an index that differ between databases."""

    def make(self, statements: Statements) -> None:
        """Create the index if there is none. The caller holds a transaction."""

    @property
    def missing(self) -> str:
        """A condition on ``content AS c`` for a body that is not in the index yet."""
        ...

    def put(self, statements: Statements, rows: Iterable[tuple[int, str]]) -> None:
        """Put the words of bodies into the index, by the numbers of the bodies."""

    @property
    def join(self) -> str:
        """The join of the index to ``content AS c``."""
        ...

    def matches(self, terms: Sequence[Term]) -> tuple[str, list[SqlValue]]:
        """The condition for matching messages, with its values. At least one term is required."""
        ...


async def search(database: Database, index: Index, where: SearchFilter) -> list[FoundMessage]:
    """See `Store.search`."""
    terms = () if where.text is None else terms_of(where.text)
    if where.text is not None and all(term.absent for term in terms):
        raise StoreError(f"no search word in {where.text!r}")
    if terms:
        await database.write(index.make)
        while await database.write(lambda statements: _take_in(statements, index)):
            pass
    return await database.look(lambda statements: _find(statements, index, where, terms))


def _take_in(statements: Statements, index: Index) -> bool:
    """Index some messages. Return False if all messages are indexed."""
    rows = statements.run(
        f"""
        SELECT c.id, c.body FROM content AS c
         WHERE c.hash IN (SELECT hash FROM session_messages) AND {index.missing}
         ORDER BY c.id LIMIT {_AT_ONCE}
        """
    )
    fetch = BodyReader(statements)
    index.put(statements, [(number, " ".join(words_of(_role_and_text(body, fetch)[1]))) for number, body in rows])
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
    fetch = BodyReader(statements)
    return [
        FoundMessage(session_id, position, message_id, ts_us, *_role_and_text(body, fetch))
        for session_id, position, message_id, ts_us, body in rows
    ]


def _role_and_text(body: bytes, fetch: BodyReader) -> tuple[str, str]:
    """The role and the words of a message. Unreadable content is treated as empty."""
    try:
        message = message_of(bytes(body), fetch)
    except (ValueError, KeyError):
        return "", ""
    return str(message.role), text_of(message)


# --- Words and search terms ---
#
# The code is pure and the same for both databases. A word is letters and digits without accents in lower case.
# Each Chinese, Japanese or Korean character is a separate word. A search has words that must all occur, ``"a
# phrase"``, ``start*``, and ``-not``.


_OF_ITS_OWN = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
_WORD = re.compile(rf"[{_OF_ITS_OWN}]|[^\W_{_OF_ITS_OWN}]+")
_TERM = re.compile(r'(?P<no>-)?(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))')
_LONGEST = 100
"""The maximum length of a word. Longer runs of characters, such as base64, are not words."""


class Term(NamedTuple):
    """A part of a query: consecutive words."""

    words: tuple[str, ...]
    begins: bool = False
    """Whether the last word matches all words that start with it (``start*``)."""
    absent: bool = False


def words_of(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text)
    bare = "".join(sign for sign in plain if not unicodedata.combining(sign))
    # NFC composes Korean syllables to single characters again
    composed = unicodedata.normalize("NFC", bare).casefold()
    return [word[:_LONGEST] for word in _WORD.findall(composed)]


def terms_of(question: str) -> tuple[Term, ...]:
    """The terms of a query. A text without words has none."""
    terms = []
    for found in _TERM.finditer(question):
        text = found["phrase"] if found["phrase"] is not None else found["word"]
        words = tuple(words_of(text))
        if words:
            begins = found["phrase"] is None and text.endswith("*")
            terms.append(Term(words, begins=begins, absent=bool(found["no"])))
    return tuple(terms)


def text_of(message: Message) -> str:
    """All words of a message: its text, its thoughts, the arguments and results of tools."""
    parts: list[str] = []
    for block in message.content:
        match block:
            case TextBlock() | ThinkingBlock() | ToolResultBlock():
                parts.append(block.text)
            case ToolUseBlock():
                parts += [block.name, *_texts(block.input)]
    return "\n".join(parts)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
        case int() | float():
            yield str(value)


def excerpt(text: str, terms: tuple[Term, ...], length: int = 160) -> str:
    """The part of a text around the first searched word, on one line."""
    line = " ".join(text.split())
    first_words = [term.words[0] for term in terms if not term.absent]
    for found in re.finditer(r"\w+", line):
        if any(word.startswith(each) for word in words_of(found[0]) for each in first_words):
            start = max(0, min(found.start() - length // 3, len(line) - length))
            break
    else:
        start = 0
    cut = line[start : start + length]
    return f"{'…' if start else ''}{cut}{'…' if start + length < len(line) else ''}"

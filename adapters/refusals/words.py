"""The words and codes of servers' errors, out of the table `adapters/servers/words.json`.

A row says what an error means, and how to recognise it: by a code, or by words of the message as a regular
expression. All wires read errors with this one table. It is loaded when the first error comes, not at import.

Words are weaker evidence than codes. Rows that are `certain` are the exception. They are about money, and vendors
send them with codes of rate limits, permissions and bad requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)

from ..servers import data

Meaning: TypeAlias = Literal[
    "money", "overflow", "key", "model", "media", "rate", "busy", "filter", "access", "server"
]

_ERRORS: Mapping[Meaning, type[AdapterError]] = {
    "money": QuotaExceededError,
    "overflow": ContextOverflowError,
    "key": AuthError,
    "model": NotFoundError,
    "media": InvalidRequestError,
    "rate": RateLimitError,
    "busy": OverloadedError,
    "filter": ContentFilterError,
    "access": AccessDeniedError,
    "server": ServerError,
}

_STATUSES: Mapping[Meaning, frozenset[int | None] | None] = {
    "money": None,  # a payment error is one, whatever its status
    "overflow": frozenset({None, 400, 413, 422, 424, 500}),
    "key": frozenset({None, 400, 403}),
    "model": frozenset({None, 400}),
    "media": frozenset({None, 500}),
}
"""The HTTP statuses with which words count; None stands for any. In a set, None is an error inside a stream."""


class WordRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One way to recognise an error. Either `words` or `code` is given."""

    means: Meaning
    """What the error means."""
    servers: tuple[str, ...]
    """The servers that send it, by their names in field notes."""
    words: str = ""
    """A regular expression that is searched for in the message, without regard to case."""
    code: str = ""
    """The error's code or type, as it is sent."""
    certain: bool = False
    """Whether the words go before the error's code."""


class Words(NamedTuple):
    """The table, ready for use."""

    codes: Mapping[str, type[AdapterError]]
    certain: tuple[tuple[Meaning, re.Pattern[str]], ...]
    weak: tuple[tuple[Meaning, re.Pattern[str]], ...]


def word_rows() -> list[WordRow]:
    """The rows of the table."""
    return msgspec.json.decode(data("words.json"), type=list[WordRow])


@lru_cache(maxsize=1)
def _words() -> Words:
    rows = word_rows()
    return Words(
        {row.code: _ERRORS[row.means] for row in rows if row.code},
        _patterns([row for row in rows if row.certain]),
        _patterns([row for row in rows if not row.certain]),
    )


def _patterns(rows: list[WordRow]) -> tuple[tuple[Meaning, re.Pattern[str]], ...]:
    """One pattern a meaning, in the order of `_ERRORS`, which is the order of their evidence."""
    found = []
    for meaning in _ERRORS:
        words = [f"(?:{row.words})" for row in rows if row.words and row.means == meaning]
        if words:
            found.append((meaning, re.compile("|".join(words), re.IGNORECASE | re.DOTALL)))
    return tuple(found)


def error_of_code(code: str) -> type[AdapterError] | None:
    """The error that a code means; None for a code that is not in the table."""
    return _words().codes.get(code)


def error_of_words(message: str, status: int | None, *, certain: bool) -> type[AdapterError] | None:
    """The error that the words of a message mean; None if they are not in the table.

    Args:
        message: The provider's message.
        status: The HTTP status; None for an error inside a stream.
        certain: Whether to look among the words that go before codes, or among the others.
    """
    words = _words()
    for meaning, pattern in words.certain if certain else words.weak:
        statuses = _STATUSES.get(meaning)
        if (statuses is None or status in statuses) and pattern.search(message):
            return _ERRORS[meaning]
    return None

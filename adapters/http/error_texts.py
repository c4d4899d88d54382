"""The phrases and codes of servers' errors, from `adapters/servers/words.json`.

A row gives the meaning of a code, or of messages that match a regular expression. All wires use this table. It is
loaded at the first error. Words are weaker evidence than codes, except in `certain` rows. Those rows are about
money, because vendors report missing credit with the codes of rate limits, permissions and bad requests.
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
    StreamError,
)

from ..servers import data
from ..transport.addresses import host_of, place

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
    "money": None,  # a payment error, at any status
    "overflow": frozenset({None, 400, 413, 422, 424, 500}),
    "key": frozenset({None, 400, 403}),
    "model": frozenset({None, 400}),
    "media": frozenset({None, 500}),
}
"""The HTTP statuses at which words count; None for any status. In a set, None means an error inside a stream."""


class WordRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One sign of an error: `words` or `code`."""

    means: Meaning
    servers: tuple[str, ...]
    """The servers that send the words or the code, by their names in field notes."""
    words: str = ""
    """A regular expression to search in the message, ignoring case."""
    code: str = ""
    """The error's code or type on the wire."""
    certain: bool = False
    """Whether the words override the error's code."""


class Words(NamedTuple):
    """The table of words, with compiled patterns."""

    codes: Mapping[str, type[AdapterError]]
    certain: tuple[tuple[Meaning, re.Pattern[str]], ...]
    weak: tuple[tuple[Meaning, re.Pattern[str]], ...]


def word_rows() -> list[WordRow]:
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
    """One pattern for each meaning, in the order of `_ERRORS`."""
    found = []
    for meaning in _ERRORS:
        words = [f"(?:{row.words})" for row in rows if row.words and row.means == meaning]
        if words:
            found.append((meaning, re.compile("|".join(words), re.IGNORECASE | re.DOTALL)))
    return tuple(found)


def error_of_code(code: str) -> type[AdapterError] | None:
    """The error of a code; None if it is not in the table."""
    return _words().codes.get(code)


def error_of_words(message: str, status: int | None, *, certain: bool) -> type[AdapterError] | None:
    words = _words()
    for meaning, pattern in words.certain if certain else words.weak:
        statuses = _STATUSES.get(meaning)
        if (statuses is None or status in statuses) and pattern.search(message):
            return _ERRORS[meaning]
    return None


LITELLM_CODES: Mapping[str, type[AdapterError]] = {
    # Names of exceptions. A code that agrees with its HTTP status needs no entry.
    "ContextWindowExceededError": ContextOverflowError,
    "ContentPolicyViolationError": ContentFilterError,
    "BudgetExceededError": QuotaExceededError,
    # types of the proxy's own errors, with any status
    "budget_exceeded": QuotaExceededError,
    "no_db_connection": AuthError,  # a proxy without a database accepts only the master key
    "expired_key": AuthError,
    "token_not_found_in_db": AuthError,
    "key_model_access_denied": AccessDeniedError,
    "team_model_access_denied": AccessDeniedError,
    "user_model_access_denied": AccessDeniedError,
    "customer_model_access_denied": AccessDeniedError,
    "org_model_access_denied": AccessDeniedError,
    "project_model_access_denied": AccessDeniedError,
}

_NAME = re.compile(r"litellm\.([A-Z][A-Za-z]{1,60}): ")
_WRAPPERS = re.compile(r"(?:(?:litellm\.)?[A-Z][A-Za-z]{1,60}(?:Error|Exception|Timeout)(?:: | - ))+")
_REMARK = re.compile(r"\n+(?:LiteLLM: model group |model=)|\.? ?Received Model Group=")


def exception_name(message: str) -> str:
    """The known LiteLLM exception name at the start of the message; empty if there is none."""
    match = _NAME.match(message)
    return match[1] if match is not None and match[1] in LITELLM_CODES else ""


def unwrapped(message: str) -> str:
    """The provider's message inside LiteLLM's message. Any other message is returned unchanged."""
    if _NAME.match(message) is None:
        return message
    wrappers = _WRAPPERS.match(message)
    remark = _REMARK.search(message)
    inner = message[wrappers.end() if wrappers else 0 : remark.start() if remark else None].strip()
    return inner[2:-1] if inner.startswith(("b'", 'b"')) else inner


# --- Replies that don't come from the provider ---

EXCERPT_BYTES = 2000
_EXCERPT_CHARACTERS = 160

_ADVICE = "is base_url right?"


def not_of_protocol(
    name: str, body: bytes, headers: Mapping[str, str], url: str, why: object, *, found: str = "the reply"
) -> StreamError:
    """The error for an unreadable reply. If it is a web page or not JSON, the address is wrong, and the error is
    not retried.
    """
    kind = content_type(headers)
    message = (
        f"{name}: {found} of {host_of(url)} does not follow its protocol ({kind or 'no content type'}): {why}"
    )
    message += f"; it starts with {excerpt(body)!r}" if body.strip() else "; it is empty"
    if is_foreign(body, kind):
        return StreamError(f"{message}; {_ADVICE}", retryable=False)
    return StreamError(message)


def is_page(headers: Mapping[str, str]) -> bool:
    """Whether a reply is a web page or an image."""
    return content_type(headers).startswith(
        ("text/html", "application/xhtml", "text/xml", "application/xml", "image/")
    )


def is_foreign(body: bytes, kind: str) -> bool:
    """Whether an unreadable body does not come from a model server at all."""
    if body.lstrip()[:1] == b"<":
        return True
    return bool(kind and body.strip()) and not any(
        word in kind for word in ("json", "event-stream", "octet-stream")
    )


def origin(status: int, headers: Mapping[str, str], body: bytes, url: str) -> str:
    """The origin of a reply, for an error's text. Empty if the provider obviously sent it."""
    if 300 <= status < 400:
        target = headers.get("location", "")
        where = f"to {place(target)}" if target else "without a target"
        return f" ({host_of(url)} redirects {where}, and redirects are not followed: correct base_url)"
    if body.lstrip()[:1] in (b"{", b"[") or body.startswith((b"data:", b"event:")):
        return ""
    return f" ({content_type(headers) or 'no content type'}, from {host_of(url)})"


def content_type(headers: Mapping[str, str]) -> str:
    """The media type in lower case, without parameters. Empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def excerpt(body: bytes) -> str:
    """The first words of a body, without HTML tags."""
    text = re.sub(rb"<[^>]*>|\s+", b" ", body[:EXCERPT_BYTES]).decode("utf-8", "replace")
    return " ".join(text.split())[:_EXCERPT_CHARACTERS]

"""The details of Google's errors, each with a type of its own: the reason of the error, and the time to wait.

They stand in the body, where other providers use headers and codes. Google's endpoint for Chat Completions sends
them, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from callboard.bus.values.json import Json, JsonObject

from ..http.retry import duration_seconds

USED_UP = "QUOTA_USED_UP"
"""Our own code for a quota that waiting for a minute doesn't refill: one for a day, or one of nothing at all."""

_NO_LIMIT_LEFT = re.compile(r"\blimit: 0\b")


def detail_reason(details: Json, message: str) -> str:
    """The reason that an ErrorInfo names, or `USED_UP` for a quota that is spent. Empty if there is neither."""
    reason = ""
    for kind, detail in _each(details):
        if kind == "QuotaFailure" and _is_used_up(detail, message):
            return USED_UP
        if kind == "ErrorInfo" and isinstance(named := detail.get("reason"), str):
            reason = named
    return reason


def detail_delay(details: Json) -> float | None:
    """Seconds to wait, as a RetryInfo says it."""
    for kind, detail in _each(details):
        if kind == "RetryInfo" and isinstance(delay := detail.get("retryDelay"), str):
            return duration_seconds(delay) or None  # a delay of zero is no hint
    return None


def _each(details: Json) -> Iterator[tuple[str, JsonObject]]:
    """Each detail, with the last word of its type."""
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(kind := detail.get("@type"), str):
            yield kind.rpartition(".")[2], detail


def _is_used_up(detail: JsonObject, message: str) -> bool:
    violations = detail.get("violations")
    return any(
        "PerDay" in str(violation.get("quotaId"))
        or violation.get("quotaValue") == "0"
        or bool(_NO_LIMIT_LEFT.search(message))
        for violation in (violations if isinstance(violations, list) else ())
        if isinstance(violation, dict)
    )

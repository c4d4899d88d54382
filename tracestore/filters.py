"""The calls that a question is about, and the dimensions of its answer, as plain values.

`tracestore.sql.calls` says both in SQL.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from .timestamps import to_us

CallStatus: TypeAlias = Literal["started", "completed", "failed", "cancelled"]
"""The status of a stored call. A call that is under way, or whose process is gone, is ``started``."""

DIMENSIONS = (
    *("day", "provider", "model", "session_id", "turn_id", "status"),
    *("served_model", "error_class", "stop_reason", "operation", "key"),
)
"""Columns of a call. ``tag:KEY`` is one more: the value of that tag."""


class CallFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which calls. A field that is None doesn't matter, and all others must hold.

    Raises:
        ValueError: A datetime has no time zone.
    """

    since: int | datetime | None = None
    """The earliest start of an attempt: microseconds UTC, or an aware datetime."""
    until: int | datetime | None = None
    """The moment before which an attempt started: microseconds UTC, or an aware datetime."""
    provider: str | None = None
    """The adapter's name."""
    model: str | None = None
    """The model as routed: ``provider:name``, or the name alone. With ``*`` at the end, any that begins so."""
    session_id: str | None = None
    """The session of the call."""
    request_id: str | None = None
    """The call itself, with all its attempts."""
    status: CallStatus | None = None
    """``started``, ``completed``, ``failed`` or ``cancelled``."""
    tags: dict[str, str] | None = None
    """Tags that the call must have, with their values."""
    turn_id: str | None = None
    """The turn of the call. It has no index of its own: in a large trace, say the session too."""
    error_class: str | None = None
    """A value of `ErrorClass`."""
    unpriced: bool = False
    """True: only calls with usage and without a cost, the current one or that of the version asked for."""
    min_cost_nano_usd: int | None = None
    """The least cost in nano-USD, the current one or that of the version asked for."""
    operation: str | None = None
    """``chat``, ``embeddings``, ``image``, ``video_create``, ``video``, ``batch_create`` or ``batch``."""
    key: str | None = None
    """The name of the key that was sent."""
    unknown: bool = False
    """True: only calls of which not even the usage is known, see `CostRow`."""

    def __post_init__(self) -> None:
        for moment in (self.since, self.until):
            if moment is not None:
                to_us(moment)  # which refuses a datetime without a time zone, here and not in some query later


class SearchFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The captured messages that are looked for."""

    text: str | None = None
    """The words that they say: all of these, ``"a phrase"``, ``begin*``, and ``-not``. None is any."""
    session_id: str | None = None
    """The session of the messages."""
    since_us: int | None = None
    """The first moment at which they were said."""
    until_us: int | None = None
    """The moment before which they were said."""
    limit: int = 20
    """The number of messages at most, the latest first."""

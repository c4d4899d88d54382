"""The rows of calls: which columns the start and the end of an attempt fill, and the statements that store them.

Columns that have the name of an event's field are named once here, and filled from the fields of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from callboard.bus.errors import ErrorClass
from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted

from ..timestamps import US_PER_DAY
from .calls.columns import USAGE_COLUMNS, cost_columns, cost_values, json_text, usage_values
from .connection import Insert, SqlValue

Values = list[SqlValue]

IDENTITY = ("session_id", "turn_id", "request_id", "attempt", "message_id", "caused_by", "tags")
"""The columns that an event and a call have alike."""

_SHARED = (*IDENTITY, "run", "ts_us", "day", "provider", "model", "status")
"""The columns that the start and the end of an attempt fill alike; and the status, in which they differ."""

REQUEST, ATTEMPT, RUN, STATUS = map(_SHARED.index, ("request_id", "attempt", "run", "status"))

_START_FIELDS = (
    "requested_model",
    "reason",
    "estimated_input_tokens",
    "priced_as",
    "operation",
    "reserved_tokens",
    "key",
)
_END_FIELDS = ("first_token_ms", "latency_ms", "provider_request_id")
_COMPLETED_FIELDS = ("served_model", "raw_stop_reason", "response_id")
_FAILED_FIELDS = (
    *("retry_count", "error_type", "provider_status", "provider_code", "delay_seconds", "retry_after_seconds"),
)
_of_start, _of_end = attrgetter(*_START_FIELDS), attrgetter(*_END_FIELDS)
_of_completed, _of_failed = attrgetter(*_COMPLETED_FIELDS), attrgetter(*_FAILED_FIELDS)

_STARTED = (*_START_FIELDS, "started_us", "streamed", "routing", "reserved_nano")
_ENDED = (*_END_FIELDS, "finished_us", "resent", *USAGE_COLUMNS, *cost_columns("cost"))
_COMPLETED = (*_ENDED, *_COMPLETED_FIELDS, "retry_count", "stop_reason", "warnings")
_FAILED = (*_ENDED, *_FAILED_FIELDS, "error_message", "error_class", "will_retry")


def _upsert(columns: tuple[str, ...], overwrite: Sequence[str]) -> Insert:
    """Insert a call, or fill in its row: `overwrite` columns are set, the others only where they are NULL.

    The shared columns were set by whichever event came first. They are left alone, not least because SQLite would
    rewrite every index on a column that is mentioned, changed or not.
    """
    changes = [
        _set(name) if name in overwrite else f"{name} = coalesce(calls.{name}, excluded.{name})"
        for name in columns
        if name in overwrite or name not in _SHARED
    ]
    return Insert("calls", columns, f"ON CONFLICT (request_id, attempt) DO UPDATE SET {', '.join(changes)}")


def _set(name: str) -> str:
    """The change that sets a column. If another process starts an attempt again, to take its reply up, the first
    start says when it began.
    """
    if name in ("ts_us", "day"):
        return f"{name} = CASE WHEN calls.started_us IS NULL THEN excluded.{name} ELSE calls.{name} END"
    return f"{name} = excluded.{name}"


# A start sets when the call began, an end how it ended. Everything else is first come, first kept.
UPSERT_STARTED = _upsert((*_SHARED, *_STARTED), ("ts_us", "day"))
UPSERT_COMPLETED = _upsert((*_SHARED, *_COMPLETED), ("status",))
UPSERT_FAILED = _upsert((*_SHARED, *_FAILED), ("status",))
UPSERT_STARTED_COMPLETED = _upsert((*_SHARED, *_STARTED, *_COMPLETED), ("ts_us", "day", "status"))
UPSERT_STARTED_FAILED = _upsert((*_SHARED, *_STARTED, *_FAILED), ("ts_us", "day", "status"))


def started_row(event: LlmCallStarted, identity: Values, run: str | int, ts_us: int) -> Values:
    """The row of a start. In it and in the other rows, `run` stands for the run's number."""
    return [
        *(*identity, run, ts_us, ts_us // US_PER_DAY, event.provider, event.model, "started"),
        *(*_of_start(event), ts_us, int(event.streamed)),
        None if event.routing is None else json_text(event.routing),
        event.reserved_nano_usd,
    ]


def completed_row(event: LlmCallCompleted, identity: Values, run: str | int, ts_us: int) -> Values:
    """The row of an end that is good."""
    row = _ended(event, identity, run, ts_us, "completed")
    row += _of_completed(event)
    attempt = identity[ATTEMPT]
    assert isinstance(attempt, int)
    row += (attempt - 1, str(event.stop_reason), json_text(event.warnings) if event.warnings else None)
    return row


def failed_row(event: LlmCallFailed, identity: Values, run: str | int, ts_us: int) -> Values:
    """The row of an end in an error."""
    status = "cancelled" if event.error_class == ErrorClass.CANCELLED else "failed"
    row = _ended(event, identity, run, ts_us, status)
    row += _of_failed(event)
    row += (event.message, str(event.error_class), int(event.will_retry))
    return row


def _ended(
    event: LlmCallCompleted | LlmCallFailed, identity: Values, run: str | int, ts_us: int, status: str
) -> Values:
    began_us = began(event, ts_us)
    return [
        *(*identity, run, began_us, began_us // US_PER_DAY, event.provider, event.model, status),
        *(
            *_of_end(event),
            ts_us,
            1 if event.resent else None,
            *usage_values(event.usage),
            *cost_values(event.cost),
        ),
    ]


def began(event: LlmCallCompleted | LlmCallFailed, ts_us: int) -> int:
    """The start of an attempt that ended at `ts_us`, worked out for an end whose start was never stored."""
    return ts_us - event.latency_ms * 1000


def whole_row(start: Values, end: Values) -> Values:
    """The row of an attempt whose start and end are in one batch."""
    start[STATUS] = end[STATUS]
    return start + end[len(_SHARED) :]

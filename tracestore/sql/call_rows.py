"""The rows of calls: the columns that the start and the end of an attempt fill, and how they are stored.

An event fills each column of `CallRow` for which it has a field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from callboard.bus.errors import ErrorClass
from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted
from callboard.bus.events.envelope import Event

from ..calls import COLUMNS, Column
from ..timestamps import US_PER_DAY
from .calls.columns import USAGE_COLUMNS, cost_columns, cost_values, json_text, usage_values
from .connection import Insert, SqlValue

Values = list[SqlValue]

IDENTITY = ("session_id", "turn_id", "request_id", "attempt", "message_id", "caused_by", "tags")
"""The columns that an event and a call have alike."""

_SHARED = (*IDENTITY, "run", "ts_us", "day", "provider", "model", "status")
"""The columns that the start and the end of an attempt fill alike; and the status, in which they differ."""

REQUEST, ATTEMPT, RUN, STATUS = map(_SHARED.index, ("request_id", "attempt", "run", "status"))

_EVENT_FIELDS = {"error_message": "message", "reserved_nano": "reserved_nano_usd"}
"""The fields of events that have another name than their columns."""

_NAMES = (*(name for name in COLUMNS if name not in _SHARED), "reserved_nano", "reserved_tokens")


class _Filled:
    """The columns that an event fills from its own fields."""

    def __init__(self, event: type[Event], but: Sequence[str] = ()) -> None:
        names = {name: _EVENT_FIELDS.get(name, name) for name in _NAMES if name not in but}
        self.columns = tuple(name for name, field in names.items() if field in event.__struct_fields__)
        self._read = attrgetter(*(names[name] for name in self.columns))
        self._writers = [
            (place, write)
            for place, name in enumerate(self.columns)
            if (write := _writer(name, COLUMNS.get(name))) is not None
        ]

    def values(self, event: Event) -> Values:
        values = list(self._read(event))
        for place, write in self._writers:
            values[place] = write(values[place])
        return values


def _writer(name: str, column: Column | None) -> Callable[[Any], SqlValue] | None:
    """What makes the value of a column from a field; None if it is the same in SQL."""
    if name in ("stop_reason", "error_class"):
        return str  # members of an enum
    if column is not None and column.kind == "json":
        return lambda value: json_text(value) if value else None
    if column is not None and column.kind == "bool":
        # A later event fills in what an earlier one left NULL, so the default is no value.
        return int if column.default is None else lambda value: 1 if value else None
    return None


_START = _Filled(LlmCallStarted)
_COMPLETION = _Filled(LlmCallCompleted, but=_START.columns)
_FAILURE = _Filled(LlmCallFailed, but=_START.columns)

_STARTED = (*_START.columns, "started_us")
_ENDED = ("finished_us", *USAGE_COLUMNS, *cost_columns("cost"))
_COMPLETED = (*_ENDED, *_COMPLETION.columns, "retry_count")
_FAILED = (*_ENDED, *_FAILURE.columns)


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
    shared = (*identity, run, ts_us, ts_us // US_PER_DAY, event.provider, event.model, "started")
    return [*shared, *_START.values(event), ts_us]


def completed_row(event: LlmCallCompleted, identity: Values, run: str | int, ts_us: int) -> Values:
    """The row of an end that is good."""
    row = _ended(event, identity, run, ts_us, "completed")
    row += _COMPLETION.values(event)
    attempt = identity[ATTEMPT]
    assert isinstance(attempt, int)
    row.append(attempt - 1)
    return row


def failed_row(event: LlmCallFailed, identity: Values, run: str | int, ts_us: int) -> Values:
    """The row of an end in an error."""
    status = "cancelled" if event.error_class == ErrorClass.CANCELLED else "failed"
    row = _ended(event, identity, run, ts_us, status)
    row += _FAILURE.values(event)
    return row


def _ended(
    event: LlmCallCompleted | LlmCallFailed, identity: Values, run: str | int, ts_us: int, status: str
) -> Values:
    began_us = began(event, ts_us)
    shared = (*identity, run, began_us, began_us // US_PER_DAY, event.provider, event.model, status)
    return [*shared, ts_us, *usage_values(event.usage), *cost_values(event.cost)]


def began(event: LlmCallCompleted | LlmCallFailed, ts_us: int) -> int:
    """The start of an attempt that ended at `ts_us`, worked out for an end whose start was never stored."""
    return ts_us - event.latency_ms * 1000


def whole_row(start: Values, end: Values) -> Values:
    """The row of an attempt whose start and end are in one batch."""
    start[STATUS] = end[STATUS]
    return start + end[len(_SHARED) :]

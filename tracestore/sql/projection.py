"""What a batch of envelopes means as rows, and the statements that store them.

Every statement is idempotent: a batch that is written twice leaves what it left the first time. A later event
only fills in what an earlier one left open, so the rows come out the same when a start arrives after its end, and
however the events are spread over batches. A call whose start and end are in one batch, as those of quick calls
are, is one row written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Self, assert_never

import msgspec
from msgspec.structs import astuple

from bus.errors import ErrorClass
from bus.events.catalogue import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    SessionCreated,
    SessionModelChanged,
    SessionRenamed,
)
from bus.events.envelope import Envelope
from bus.values.usage import Cost, TokenUsage

from ..codec import encode_event, storable_text, topic_of
from ..prices.rows import MAX_INT64
from ..sqlite.database import Statements
from ..sqlite.insert import Insert, SqlValue
from ..timestamps import US_PER_DAY
from ..writing.captured import CapturedMessage, CapturedSetup
from .content import store_content
from .repricing.late_costs import add_late_costs

Values = list[SqlValue]

# In the order of an envelope's fields, so that an envelope is nearly a row already.
_EVENT = (
    *("seq", "run", "ts_us", "mono_ns", "data"),
    *("session_id", "turn_id", "request_id", "attempt", "message_id", "caused_by", "tags", "topic"),
)
_EVENT_RUN, _EVENT_DATA, _EVENT_TAGS = map(_EVENT.index, ("run", "data", "tags"))
INSERT_EVENT = Insert("events", _EVENT, "ON CONFLICT (run, seq) DO NOTHING")

_PROJECTED = {
    *(LlmCallStarted, LlmCallCompleted, LlmCallFailed, SessionCreated, SessionModelChanged),
    SessionRenamed,
    *(CapturedMessage, CapturedSetup),
}
"""Events that say more than that they happened."""

# What start and end say alike, first in the order of an envelope too; and the status, in which they differ.
_SHARED = (
    *("session_id", "turn_id", "request_id", "attempt", "message_id", "caused_by", "tags"),
    *("run", "ts_us", "day", "provider", "model", "status"),
)
_IDENTITY = slice(5, 12)  # the columns of an event that go into the row of a call as they are
_REQUEST, _ATTEMPT, _RUN, _STATUS = map(_SHARED.index, ("request_id", "attempt", "run", "status"))
_STARTED = (
    *("started_us", "requested_model", "streamed", "reason", "routing", "estimated_input_tokens"),
    *("priced_as", "operation"),
)
_ENDED = (
    *("finished_us", "first_token_ms", "latency_ms", "provider_request_id", "retry_count", "resent"),
    *("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "reasoning_tokens", "usage_source", "usage_raw", "usage_details"),
    *("service_tier", "cost_nano", "cost_source", "cost_version", "cost_reason", "cost_computed_nano"),
)
_COMPLETED = (*_ENDED, "served_model", "stop_reason", "raw_stop_reason", "response_id", "warnings")
_FAILED = (
    *(*_ENDED, "error_class", "error_type", "error_message", "provider_status", "provider_code"),
    *("will_retry", "delay_seconds", "retry_after_seconds"),
)


def _upsert(columns: Sequence[str], overwrite: Sequence[str]) -> Insert:
    """Insert a call, or fill in its row: `overwrite` columns are set, the others only where they are NULL.

    What start and end say alike was set by whichever came first. It is left alone, not least because SQLite would
    rewrite every index on a column that is mentioned, changed or not.
    """
    changes = [
        f"{name} = excluded.{name}" if name in overwrite else f"{name} = coalesce(calls.{name}, excluded.{name})"
        for name in columns
        if name in overwrite or name not in _SHARED
    ]
    return Insert("calls", columns, f"ON CONFLICT (request_id, attempt) DO UPDATE SET {', '.join(changes)}")


# A start sets when the call began, an end how it ended. Everything else is first come, first kept.
UPSERT_STARTED = _upsert((*_SHARED, *_STARTED), ("ts_us", "day"))
UPSERT_COMPLETED = _upsert((*_SHARED, *_COMPLETED), ("status",))
UPSERT_FAILED = _upsert((*_SHARED, *_FAILED), ("status",))
UPSERT_STARTED_COMPLETED = _upsert((*_SHARED, *_STARTED, *_COMPLETED), ("ts_us", "day", "status"))
UPSERT_STARTED_FAILED = _upsert((*_SHARED, *_STARTED, *_FAILED), ("ts_us", "day", "status"))

INSERT_TAG = """
    INSERT INTO call_tags (key, value, call_id)
    SELECT ?, ?, id FROM calls WHERE request_id = ? AND attempt = ?
    ON CONFLICT DO NOTHING
"""

UPSERT_SESSION = Insert(
    "sessions",
    ("session_id", "first_us", "last_us", "model", "tags", "name"),
    """
    ON CONFLICT (session_id) DO UPDATE SET
        first_us = min(first_us, excluded.first_us),
        model = CASE WHEN excluded.last_us >= last_us THEN coalesce(excluded.model, model)
                     ELSE coalesce(model, excluded.model)
                END,
        tags = coalesce(excluded.tags, tags),
        name = CASE WHEN excluded.last_us >= last_us THEN coalesce(excluded.name, name)
                    ELSE coalesce(name, excluded.name)
               END,
        last_us = max(last_us, excluded.last_us)
    """,
)


class RunSpan(msgspec.Struct):
    """What a batch has of one run: its first and its last moment, in microseconds, and its highest seq."""

    run_id: str
    first_us: int
    last_us: int
    seq: int


class Batch:
    """Envelopes, encoded and sorted by the statement that stores them.

    It is made off the transaction: `add` takes as many at a time as the event loop can spare, `complete` ends it.
    """

    def __init__(self) -> None:
        # The values of events, row after row. Here and in the rows of calls, a run's name stands for its number.
        self._events: Values = []
        self._starts: dict[tuple[str, int], Values] = {}  # by request and attempt, and
        self._more_starts: list[Values] = []  # those that came again
        self._completed: list[Values] = []
        self._failed: list[Values] = []
        self._tags: list[Values] = []
        self._ended: list[tuple[str, int, int]] = []  # calls with usage: request, attempt and when they began
        # of each session: model, tags and name
        self._told: dict[str, tuple[str | None, str | None, str | None]] = {}
        self._captured: list[Envelope] = []
        # What `complete` makes of them:
        self._calls: list[tuple[Insert, Values]] = []
        self._sessions: Values = []
        self._runs: list[RunSpan] = []

    @classmethod
    def of(cls, envelopes: Iterable[Envelope]) -> Self:
        """All of them at once, for where no event loop waits."""
        batch = cls()
        batch.add(envelopes)
        batch.complete()
        return batch

    def add(self, envelopes: Iterable[Envelope]) -> None:
        """Take in more, about 5 microseconds of CPU each."""
        for envelope in envelopes:
            self._add(envelope)

    def complete(self, *, storable: bool = False) -> None:
        """Nothing more is added: join what belongs together. Once, before `write`.

        storable: look at every value, and replace what SQLite doesn't take: half a surrogate pair becomes a
        question mark, an impossible count is unknown. Without it SQLite finds out, which costs nothing as long as
        all is well.
        """
        self._calls = [
            (UPSERT_STARTED_COMPLETED, _flat(self._joined(self._completed))),
            (UPSERT_STARTED_FAILED, _flat(self._joined(self._failed))),
            (UPSERT_STARTED, _flat([*self._starts.values(), *self._more_starts])),
            (UPSERT_FAILED, _flat(self._failed)),
            (UPSERT_COMPLETED, _flat(self._completed)),
        ]
        moments = self._column("ts_us")
        self._sessions = _flat(
            (name, first, last, *self._told.get(name, (None, None, None)))
            for name, (first, last) in _ranges(self._column("session_id"), moments).items()
        )
        names = self._column("run")
        seqs = _ranges(names, self._column("seq"))
        self._runs = [
            RunSpan(name, first, last, seqs[name][1]) for name, (first, last) in _ranges(names, moments).items()
        ]
        if storable:
            for run in self._runs:
                run.run_id = storable_text(run.run_id)
            for values in (self._events, *(values for _, values in self._calls), *self._tags, self._sessions):
                _make_storable(values)

    def _column(self, name: str) -> list[Any]:
        return self._events[_EVENT.index(name) :: len(_EVENT)]

    def write(self, statements: Statements, number_of: Callable[[RunSpan], int]) -> dict[str, int]:
        """Execute what stores it, once. number_of: notes the run and tells its number. Returns those, by name."""
        numbers = {run.run_id: number_of(run) for run in self._runs}
        if self._captured:
            store_content(statements, self._captured, numbers)
        for insert, values, at in (
            (INSERT_EVENT, self._events, _EVENT_RUN),
            *((*call, _RUN) for call in self._calls),
        ):
            if values:
                column = slice(at, None, insert.width)
                values[column] = [numbers[str(run)] for run in values[column]]
                statements.insert(insert, values)
        if self._tags:
            statements.run_many(INSERT_TAG, self._tags)
        statements.insert(UPSERT_SESSION, self._sessions)
        if self._ended:
            add_late_costs(statements, self._ended)
        return numbers

    def _add(self, envelope: Envelope) -> None:
        row: Values = list(astuple(envelope))
        data, tags = envelope.data, envelope.tags
        row[_EVENT_DATA] = encode_event(data).decode("utf-8", "replace")
        if tags is not None:
            row[_EVENT_TAGS] = _json(tags) if tags else None
        row.append(topic_of(data))
        self._events += row
        if type(data) not in _PROJECTED:
            return
        match data:
            case LlmCallStarted() | LlmCallCompleted() | LlmCallFailed() if envelope.request_id is not None:
                self._note_call(envelope.request_id, envelope, data, row[_IDENTITY])
            case SessionCreated() if envelope.session_id is not None:
                tags_json = _json(data.tags) if data.tags else None
                self._note_session(envelope.session_id, data.model, tags_json, data.name)
            case SessionModelChanged() if envelope.session_id is not None:
                self._note_session(envelope.session_id, data.current)
            case SessionRenamed() if envelope.session_id is not None:
                self._note_session(envelope.session_id, name=data.name)
            case CapturedMessage() | CapturedSetup() if envelope.session_id is not None:
                self._captured.append(envelope)
            case _:
                pass

    def _note_session(
        self, session_id: str, model: str | None = None, tags: str | None = None, name: str | None = None
    ) -> None:
        before = self._told.get(session_id, (None, None, None))
        self._told[session_id] = (model or before[0], tags or before[1], name or before[2])

    def _note_call(
        self,
        request_id: str,
        envelope: Envelope,
        data: LlmCallStarted | LlmCallCompleted | LlmCallFailed,
        shared: Values,
    ) -> None:
        attempt = 1 if envelope.attempt is None else envelope.attempt
        shared[_ATTEMPT] = attempt
        ts_us = envelope.ts_us
        match data:
            case LlmCallStarted() as event:
                shared += (envelope.run_id, ts_us, ts_us // US_PER_DAY, event.provider, event.model, "started")
                start = [
                    *(*shared, ts_us, event.requested_model, int(event.streamed), event.reason),
                    *(None if event.routing is None else _json(event.routing), event.estimated_input_tokens),
                    *(event.priced_as, event.operation),
                ]
                if (request_id, attempt) in self._starts:
                    self._more_starts.append(start)
                else:
                    self._starts[request_id, attempt] = start
            case LlmCallCompleted() as event:
                shared += (envelope.run_id, *_began(event, ts_us), "completed")
                self._completed.append(
                    [
                        *(*shared, ts_us, event.first_token_ms, event.latency_ms, event.provider_request_id),
                        *(attempt - 1, event.resent or None, *_used(event.usage, event.cost), event.served_model),
                        *(str(event.stop_reason), event.raw_stop_reason, event.response_id),
                        _json(event.warnings) if event.warnings else None,
                    ]
                )
            case LlmCallFailed() as event:
                cancelled = event.error_class == ErrorClass.CANCELLED
                shared += (envelope.run_id, *_began(event, ts_us), "cancelled" if cancelled else "failed")
                self._failed.append(
                    [
                        *(*shared, ts_us, event.first_token_ms, event.latency_ms, event.provider_request_id),
                        *(event.retry_count, event.resent or None, *_used(event.usage, event.cost)),
                        str(event.error_class),
                        *(event.error_type, event.message, event.provider_status, event.provider_code),
                        *(int(event.will_retry), event.delay_seconds, event.retry_after_seconds),
                    ]
                )
            case _:
                assert_never(data)
        if not isinstance(data, LlmCallStarted) and data.usage is not None:
            self._ended.append((request_id, attempt, _began(data, ts_us)[0]))
        for tag, value in (envelope.tags or {}).items():
            self._tags.append([tag, value, request_id, attempt])

    def _joined(self, ends: list[Values]) -> list[Values]:
        """Rows of calls that start and end in this batch; they are taken out of the starts and out of `ends`."""
        whole: list[Values] = []
        alone: list[Values] = []
        for end in ends:
            start = self._starts.pop((end[_REQUEST], end[_ATTEMPT]), None)  # type: ignore[arg-type]
            if start is None:
                alone.append(end)
            else:
                start[_STATUS] = end[_STATUS]
                whole.append(start + end[len(_SHARED) :])
        ends[:] = alone
        return whole


def _ranges(names: Sequence[str | None], values: Sequence[int]) -> dict[str, tuple[int, int]]:
    """The least and the greatest value of each name; both lists are of the same length."""
    if len(set(names)) == 1 and names[0] is not None:
        return {names[0]: (min(values), max(values))}
    ranges: dict[str, tuple[int, int]] = {}
    for name, value in zip(names, values, strict=True):
        if name is not None:
            least, greatest = ranges.get(name, (value, value))
            ranges[name] = (min(least, value), max(greatest, value))
    return ranges


def _began(event: LlmCallCompleted | LlmCallFailed, ts_us: int) -> tuple[int, int, str, str]:
    # The moment of the start is the price's moment; it is worked out for an end whose start was never stored.
    began = ts_us - event.latency_ms * 1000
    return began, began // US_PER_DAY, event.provider, event.model


def _used(usage: TokenUsage | None, cost: Cost | None) -> Values:
    values: Values = [None] * 10
    if usage is not None:
        raw = None if usage.raw is None else bytes(usage.raw).decode("utf-8", "replace")
        details = _json(usage.details) if usage.details else None
        values = [*astuple(usage)[:6], str(usage.source), raw, details, usage.service_tier]
    if cost is None:
        values += (None, None, None, None, None)
    else:
        values += (cost.nano_usd, str(cost.source), cost.pricing_version, cost.reason, cost.computed_nano_usd)
    return values


def _flat(rows: Iterable[Sequence[SqlValue]]) -> Values:
    return list(chain.from_iterable(rows))


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(value))).decode()


def _readable(value: object) -> object:
    match value:
        case str():
            return storable_text(value)
        case dict():
            return {_readable(name): _readable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_readable(inner) for inner in value]
        case _:
            return value


def _make_storable(values: Values) -> None:
    for index, value in enumerate(values):
        if isinstance(value, str):
            values[index] = storable_text(value)
        elif isinstance(value, int) and not -MAX_INT64 <= value <= MAX_INT64:
            values[index] = None

"""What a batch of envelopes means as rows: pure functions, no database.

Every statement is idempotent: a batch that is written twice leaves what it left the first time. A later event
only fills in what an earlier one left open, so the rows come out the same when a start arrives after its end, and
however the events are spread over batches. A call whose start and end are in one batch, as those of quick calls
are, is one row written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import astuple

from bus.errors import ErrorClass
from bus.events import (
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    SessionCreated,
    SessionModelChanged,
)
from bus.usage import Cost, TokenUsage

from .codec import encode_event, topic_of
from .database import SqlValue
from .prices import MAX_INT64
from .queries import US_PER_DAY

Values = list[SqlValue]

# The columns are in the order of an envelope's fields, so that an envelope is nearly a row already.
INSERT_EVENT = """
    INSERT INTO events (seq, run, ts_us, mono_ns, data, session_id, turn_id, request_id, attempt, message_id,
                        caused_by, tags, topic)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, seq) DO NOTHING
"""
_EVENT_RUN, _EVENT_DATA, _EVENT_TAGS = 1, 4, 11

# What start and end say alike, first in the order of an envelope too; and the status, in which they differ.
_SHARED = (
    *("session_id", "turn_id", "request_id", "attempt", "message_id", "caused_by", "tags"),
    *("run", "ts_us", "day", "provider", "model", "status"),
)
_IDENTITY = slice(5, 12)  # the columns of an event that go into the row of a call as they are
_REQUEST, _ATTEMPT, _RUN, _STATUS = map(_SHARED.index, ("request_id", "attempt", "run", "status"))
_STARTED = ("started_us", "requested_model", "streamed", "reason", "routing", "estimated_input_tokens")
_ENDED = (
    *("finished_us", "first_token_ms", "latency_ms", "provider_request_id", "retry_count"),
    *("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "reasoning_tokens", "usage_source", "usage_raw"),
    *("cost_nano", "cost_source", "cost_version", "cost_reason"),
)
_COMPLETED = (*_ENDED, "served_model", "stop_reason", "raw_stop_reason", "response_id", "warnings")
_FAILED = (
    *(*_ENDED, "error_class", "error_type", "error_message", "provider_status", "provider_code"),
    *("will_retry", "delay_seconds", "retry_after_seconds"),
)


def _upsert(columns: Sequence[str], overwrite: Sequence[str]) -> str:
    """Insert a call, or fill in its row: `overwrite` columns are set, the others only where they are NULL.

    What start and end say alike was set by whichever came first. It is left alone, not least because SQLite would
    rewrite every index on a column that is mentioned, changed or not.
    """
    changes = [
        f"{name} = excluded.{name}" if name in overwrite else f"{name} = coalesce(calls.{name}, excluded.{name})"
        for name in columns
        if name in overwrite or name not in _SHARED
    ]
    return (
        f"INSERT INTO calls ({', '.join(columns)})\n"
        f"VALUES ({', '.join('?' * len(columns))})\n"
        f"ON CONFLICT (request_id, attempt) DO UPDATE SET\n    " + ",\n    ".join(changes)
    )


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

UPSERT_SESSION = """
    INSERT INTO sessions (session_id, first_us, last_us, model, tags)
    VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (session_id) DO UPDATE SET
        first_us = min(first_us, excluded.first_us),
        model = CASE WHEN excluded.last_us >= last_us THEN coalesce(excluded.model, model)
                     ELSE coalesce(model, excluded.model)
                END,
        tags = coalesce(excluded.tags, tags),
        last_us = max(last_us, excluded.last_us)
"""


class _Span:
    """The first and the last moment, in microseconds, of what a batch has of something."""

    __slots__ = ("first_us", "last_us")

    def __init__(self, envelope: Envelope) -> None:
        self.first_us = self.last_us = envelope.ts_us

    def cover(self, envelope: Envelope) -> None:
        ts_us = envelope.ts_us
        if ts_us > self.last_us:
            self.last_us = ts_us
        elif ts_us < self.first_us:
            self.first_us = ts_us


class RunSpan(_Span):
    """What a batch has of one run: when, and its highest seq."""

    __slots__ = ("run_id", "seq")

    def __init__(self, run_id: str, envelope: Envelope) -> None:
        super().__init__(envelope)
        self.run_id = run_id
        self.seq = envelope.seq

    def cover(self, envelope: Envelope) -> None:
        super().cover(envelope)
        if envelope.seq > self.seq:
            self.seq = envelope.seq


class _SessionSpan(_Span):
    """What a batch has of one session: when, and the model and the tags that were told last."""

    __slots__ = ("model", "session_id", "tags")

    def __init__(self, session_id: str, envelope: Envelope) -> None:
        super().__init__(envelope)
        self.session_id = session_id
        self.model: str | None = None
        self.tags: str | None = None


class Batch:
    """A sequence of envelopes, encoded and sorted by the statement that stores them. Built off the transaction.

    storable: look at every value, and replace what SQLite doesn't take: half a surrogate pair becomes a question
    mark, an impossible count is unknown. Without it SQLite finds out, which costs nothing as long as all is well.
    """

    def __init__(self, envelopes: Iterable[Envelope], *, storable: bool = False) -> None:
        self._runs: dict[str, RunSpan] = {}
        self._sessions: dict[str, _SessionSpan] = {}
        self._events: list[
            Values
        ] = []  # here and in the rows of calls a run's name stands where its number will be
        self._starts: dict[tuple[str, int], Values] = {}  # by request and attempt, and
        self._more_starts: list[Values] = []  # those that came again
        self._completed: list[Values] = []
        self._failed: list[Values] = []
        self._tags: list[Values] = []
        for envelope in envelopes:
            self._add(envelope)
        self._calls = [
            (UPSERT_STARTED_COMPLETED, self._joined(self._completed)),
            (UPSERT_STARTED_FAILED, self._joined(self._failed)),
            (UPSERT_STARTED, [*self._starts.values(), *self._more_starts]),
            (UPSERT_FAILED, self._failed),
            (UPSERT_COMPLETED, self._completed),
        ]
        self._session_rows: list[Values] = [
            [span.session_id, span.first_us, span.last_us, span.model, span.tags]
            for span in self._sessions.values()
        ]
        if storable:
            for span in self._runs.values():
                span.run_id = _text(span.run_id)
            for rows in (self._events, *(rows for _, rows in self._calls), self._tags, self._session_rows):
                for row in rows:
                    _make_storable(row)

    @property
    def runs(self) -> Iterable[RunSpan]:
        """The runs whose numbers `statements` needs."""
        return self._runs.values()

    def statements(self, numbers: Mapping[str, int]) -> Iterator[tuple[str, list[Values]]]:
        """What to execute, with its rows, in this order. numbers: of the runs, by name. For one use."""
        _number(self._events, _EVENT_RUN, numbers)
        yield INSERT_EVENT, self._events
        for sql, rows in self._calls:
            if rows:
                _number(rows, _RUN, numbers)
                yield sql, rows
        if self._tags:
            yield INSERT_TAG, self._tags
        if self._session_rows:
            yield UPSERT_SESSION, self._session_rows

    def _add(self, envelope: Envelope) -> None:
        data, tags = envelope.data, envelope.tags
        row: Values = list(astuple(envelope))
        row[_EVENT_DATA] = encode_event(data).decode("utf-8", "replace")
        if tags is not None:
            row[_EVENT_TAGS] = _json(tags) if tags else None
        row.append(topic_of(data))
        self._events.append(row)
        run = self._runs.get(envelope.run_id)
        if run is None:
            run = self._runs[envelope.run_id] = RunSpan(envelope.run_id, envelope)
        run.cover(envelope)
        if envelope.session_id is not None:
            self._note_session(envelope.session_id, envelope)
        if envelope.request_id is not None:
            self._note_call(envelope.request_id, envelope, row)

    def _note_call(self, request_id: str, envelope: Envelope, row: Values) -> None:
        attempt = 1 if envelope.attempt is None else envelope.attempt
        shared = row[_IDENTITY]
        shared[_ATTEMPT] = attempt
        ts_us = envelope.ts_us
        match envelope.data:
            case LlmCallStarted() as event:
                shared += (envelope.run_id, ts_us, ts_us // US_PER_DAY, event.provider, event.model, "started")
                start = [
                    *(*shared, ts_us, event.requested_model, int(event.streamed), event.reason),
                    *(None if event.routing is None else _json(event.routing), event.estimated_input_tokens),
                ]
                if (request_id, attempt) in self._starts:
                    self._more_starts.append(start)
                else:
                    self._starts[request_id, attempt] = start
            case LlmCallCompleted() as event:
                shared += (envelope.run_id, *_ended(event, ts_us), "completed")
                self._completed.append(
                    [
                        *(*shared, ts_us, event.first_token_ms, event.latency_ms, event.provider_request_id),
                        *(attempt - 1, *_used(event.usage, event.cost), event.served_model),
                        *(str(event.stop_reason), event.raw_stop_reason, event.response_id),
                        _json(event.warnings) if event.warnings else None,
                    ]
                )
            case LlmCallFailed() as event:
                cancelled = event.error_class == ErrorClass.CANCELLED
                shared += (envelope.run_id, *_ended(event, ts_us), "cancelled" if cancelled else "failed")
                self._failed.append(
                    [
                        *(*shared, ts_us, event.first_token_ms, event.latency_ms, event.provider_request_id),
                        *(event.retry_count, *_used(event.usage, event.cost), str(event.error_class)),
                        *(event.error_type, event.message, event.provider_status, event.provider_code),
                        *(int(event.will_retry), event.delay_seconds, event.retry_after_seconds),
                    ]
                )
            case _:
                return
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

    def _note_session(self, session_id: str, envelope: Envelope) -> None:
        span = self._sessions.get(session_id)
        if span is None:
            span = self._sessions[session_id] = _SessionSpan(session_id, envelope)
        span.cover(envelope)
        match envelope.data:
            case SessionCreated() as event:
                span.model = event.model or span.model
                if event.tags:
                    span.tags = _json(event.tags)
            case SessionModelChanged() as event:
                span.model = event.current or span.model
            case _:
                pass


def _ended(event: LlmCallCompleted | LlmCallFailed, ts_us: int) -> tuple[int, int, str, str]:
    # The moment of the start is the price's moment; it is worked out for an end whose start was never stored.
    began = ts_us - event.latency_ms * 1000
    return began, began // US_PER_DAY, event.provider, event.model


def _used(usage: TokenUsage | None, cost: Cost | None) -> Values:
    values: Values = [None] * 8
    if usage is not None:
        raw = None if usage.raw is None else bytes(usage.raw).decode("utf-8", "replace")
        values = [*astuple(usage)[:6], str(usage.source), raw]
    if cost is None:
        values += (None, None, None, None)
    else:
        values += (cost.nano_usd, str(cost.source), cost.pricing_version, cost.reason)
    return values


def _number(rows: Iterable[Values], column: int, numbers: Mapping[str, int]) -> None:
    for row in rows:
        row[column] = numbers[row[column]]  # type: ignore[index]


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(value))).decode()


def _readable(value: object) -> object:
    match value:
        case str():
            return _text(value)
        case dict():
            return {_readable(name): _readable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_readable(inner) for inner in value]
        case _:
            return value


def _text(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _make_storable(row: Values) -> None:
    for index, value in enumerate(row):
        if isinstance(value, str):
            row[index] = _text(value)
        elif isinstance(value, int) and not -MAX_INT64 <= value <= MAX_INT64:
            row[index] = None

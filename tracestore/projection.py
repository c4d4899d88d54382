"""What a batch of envelopes means as rows: pure functions, no database.

Every statement is idempotent: a batch that is written twice leaves what it left the first time. A later event
only fills in what an earlier one left open, so the rows come out the same when a start arrives after its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

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

INSERT_EVENT = """
    INSERT INTO events (run, seq, topic, ts_us, mono_ns, session_id, turn_id, request_id, attempt, message_id,
                        caused_by, tags, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, seq) DO NOTHING
"""

_IDENTITY = ("request_id", "attempt", "run", "session_id", "turn_id", "message_id", "caused_by", "tags")
_STARTED = (
    *_IDENTITY,
    *("ts_us", "day", "started_us", "status", "provider", "model", "requested_model", "streamed", "reason"),
    *("routing", "estimated_input_tokens"),
)
_USED = (
    *("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "reasoning_tokens", "usage_source", "usage_raw"),
    *("cost_nano", "cost_source", "cost_version", "cost_reason"),
)
_ENDED = (
    *_IDENTITY,
    *("ts_us", "day", "finished_us", "status", "provider", "model", "first_token_ms", "latency_ms"),
    *("provider_request_id", "retry_count"),
)
_COMPLETED = (*_ENDED, *_USED, "served_model", "stop_reason", "raw_stop_reason", "response_id", "warnings")
_FAILED = (
    *(*_ENDED, *_USED, "error_class", "error_type", "error_message", "provider_status", "provider_code"),
    *("will_retry", "delay_seconds", "retry_after_seconds"),
)
_ALIKE = (*_IDENTITY, "ts_us", "day", "provider", "model")


def _upsert(columns: Sequence[str], overwrite: Sequence[str]) -> str:
    """Insert a call, or fill in its row: `overwrite` columns are set, the others only where they are NULL.

    What start and end say alike was set by whichever came first. It is left alone, not least because SQLite would
    rewrite every index on a column that is mentioned, changed or not.
    """
    changes = [
        f"{name} = excluded.{name}" if name in overwrite else f"{name} = coalesce(calls.{name}, excluded.{name})"
        for name in columns
        if name in overwrite or name not in _ALIKE
    ]
    return (
        f"INSERT INTO calls ({', '.join(columns)})\n"
        f"VALUES ({', '.join('?' * len(columns))})\n"
        f"ON CONFLICT (request_id, attempt) DO UPDATE SET\n    " + ",\n    ".join(changes)
    )


# A start sets when the call began, an end how it ended. Everything else is first come, first kept.
UPSERT_STARTED = _upsert(_STARTED, ("ts_us", "day"))
UPSERT_COMPLETED = _upsert(_COMPLETED, ("status",))
UPSERT_FAILED = _upsert(_FAILED, ("status",))

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


class Batch:
    """A sequence of envelopes, encoded and sorted by the statement that stores them. Built off the transaction."""

    def __init__(self, envelopes: Iterable[Envelope]) -> None:
        self.runs: dict[str, tuple[int, int, int]] = {}  # first and last time, highest seq
        self.events: list[tuple[str, Values]] = []  # with the run's name, see `numbered`
        self.started: list[tuple[str, Values]] = []
        self.completed: list[tuple[str, Values]] = []
        self.failed: list[tuple[str, Values]] = []
        self.tags: list[Values] = []
        self._sessions: dict[str, tuple[int, int, str | None, str | None]] = {}
        for envelope in envelopes:
            self._add(envelope)

    @property
    def sessions(self) -> list[Values]:
        return [[session_id, *values] for session_id, values in self._sessions.items()]

    @staticmethod
    def numbered(rows: list[tuple[str, Values]], runs: Mapping[str, int], at: int) -> list[Values]:
        """The rows with their run's number, which only the store knows, put in at its place."""
        for run, values in rows:
            values[at] = runs[run]
        return [values for _, values in rows]

    def _add(self, envelope: Envelope) -> None:
        run = _text(envelope.run_id) or ""
        ts_us = envelope.ts_us
        first, last, seq = self.runs.get(run, (ts_us, ts_us, 0))
        self.runs[run] = (min(first, ts_us), max(last, ts_us), max(seq, envelope.seq))
        tags = _json(envelope.tags) if envelope.tags else None
        ids: Values = [_text(envelope.session_id), _text(envelope.turn_id)]
        more: Values = [_text(envelope.message_id), _text(envelope.caused_by), tags]
        request_id = _text(envelope.request_id)
        event: Values = [
            None,
            envelope.seq,
            _text(topic_of(envelope.data)),
            ts_us,
            envelope.mono_ns,
            *ids,
            request_id,
        ]
        data = encode_event(envelope.data).decode("utf-8", "replace")
        self.events.append((run, [*event, _integer(envelope.attempt), *more, data]))
        self._note_session(envelope, tags)
        if request_id is not None:
            attempt = 1 if envelope.attempt is None else envelope.attempt
            self._note_call(envelope, run, [request_id, attempt, None], [*ids, *more])

    def _note_call(self, envelope: Envelope, run: str, key: Values, ids: Values) -> None:
        ts_us = envelope.ts_us
        match envelope.data:
            case LlmCallStarted() as event:
                when: Values = [ts_us, ts_us // US_PER_DAY, ts_us, "started"]
                names: Values = [event.provider, event.model, event.requested_model, event.streamed, event.reason]
                routing = None if event.routing is None else _json(event.routing)
                estimated = _integer(event.estimated_input_tokens)
                self.started.append((run, _clean([*key, *ids, *when, *names, routing, estimated])))
            case LlmCallCompleted() as event:
                ended = _ended(event, ts_us, "completed", int(str(key[1])) - 1)
                how: Values = [
                    event.served_model,
                    str(event.stop_reason),
                    event.raw_stop_reason,
                    event.response_id,
                ]
                warnings = _json(event.warnings) if event.warnings else None
                used = _used(event.usage, event.cost)
                self.completed.append((run, _clean([*key, *ids, *ended, *used, *how, warnings])))
            case LlmCallFailed() as event:
                cancelled = event.error_class == ErrorClass.CANCELLED
                ended = _ended(event, ts_us, "cancelled" if cancelled else "failed", event.retry_count)
                error: Values = [event.error_class, event.error_type, event.message]
                provider: Values = [_integer(event.provider_status), event.provider_code, event.will_retry]
                delays: Values = [float(event.delay_seconds), event.retry_after_seconds]
                used = _used(event.usage, event.cost)
                self.failed.append((run, _clean([*key, *ids, *ended, *used, *error, *provider, *delays])))
            case _:
                return
        for tag, value in (envelope.tags or {}).items():
            self.tags.append(_clean([tag, value, *key[:2]]))

    def _note_session(self, envelope: Envelope, tags: str | None) -> None:
        session_id = _text(envelope.session_id)
        if session_id is None:
            return
        ts_us = envelope.ts_us
        model = None
        match envelope.data:
            case SessionCreated() as event:
                model, tags = _text(event.model), _json(event.tags) if event.tags else None
            case SessionModelChanged() as event:
                model, tags = _text(event.current), None
            case _:
                tags = None
        known = self._sessions.get(session_id)
        if known is None:
            self._sessions[session_id] = (ts_us, ts_us, model, tags)
        else:
            first, last, earlier, earlier_tags = known
            self._sessions[session_id] = (
                min(first, ts_us),
                max(last, ts_us),
                model or earlier,
                tags or earlier_tags,
            )


def _ended(event: LlmCallCompleted | LlmCallFailed, ts_us: int, status: str, retry_count: int) -> Values:
    # The moment of the start is the price's moment; it is worked out for an end whose start was never stored.
    began = ts_us - event.latency_ms * 1000
    times: Values = [began, began // US_PER_DAY, ts_us, status, event.provider, event.model]
    return [*times, event.first_token_ms, event.latency_ms, event.provider_request_id, retry_count]


def _used(usage: TokenUsage | None, cost: Cost | None) -> Values:
    values: Values = [None] * 8
    if usage is not None:
        counts = [_integer(getattr(usage, name)) for name in TokenUsage.__struct_fields__[:6]]
        raw = None if usage.raw is None else bytes(usage.raw).decode("utf-8", "replace")
        values = [*counts, str(usage.source), raw]
    if cost is None:
        return [*values, None, None, None, None]
    return [*values, _integer(cost.nano_usd), str(cost.source), cost.pricing_version, cost.reason]


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


def _text(value: str | None) -> str | None:
    """Text that SQLite takes: half a surrogate pair becomes a question mark."""
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "replace").decode()


def _integer(value: int | None) -> int | None:
    """An integer that SQLite takes; an impossible count is unknown."""
    return value if value is None or -MAX_INT64 <= value <= MAX_INT64 else None


def _clean(values: Values) -> Values:
    for index, value in enumerate(values):
        if type(value) is str and not value.isascii():
            values[index] = value.encode("utf-8", "replace").decode()
    return values

"""The rows that a batch of envelopes becomes, and the statements that store them.

Every statement is idempotent: a batch that is written twice leaves the tables as the first time. A later event
only fills in the columns that an earlier one left open. So the rows come out the same when a start arrives after
its end, and however the events are spread over batches. A call whose start and end are in one batch, as those of
quick calls are, is one row written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Self

from msgspec.structs import astuple

from bus.events.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted
from bus.events.codec import topic_of
from bus.events.envelope import Envelope, Event
from bus.events.sessions import SessionCreated, SessionModelChanged, SessionRenamed

from ..codec import encode_event
from ..prices.rows import MAX_INT64
from ..writing.captured import CapturedMessage, CapturedSetup
from .call_rows import (
    ATTEMPT,
    IDENTITY,
    REQUEST,
    RUN,
    UPSERT_COMPLETED,
    UPSERT_FAILED,
    UPSERT_STARTED,
    UPSERT_STARTED_COMPLETED,
    UPSERT_STARTED_FAILED,
    Values,
    began,
    completed_row,
    failed_row,
    started_row,
    whole_row,
)
from .calls.columns import json_text
from .connection import Insert, SqlValue, Statements, greater, lesser
from .content import store_content
from .repricing.late_costs import add_late_costs
from .run_numbers import RunSpan

# An envelope is nearly a row already: the columns are its fields, and the topic.
_EVENT = (*("run" if name == "run_id" else name for name in Envelope.__struct_fields__), "topic")
_EVENT_RUN, _EVENT_DATA, _EVENT_TAGS = map(_EVENT.index, ("run", "data", "tags"))
_identity = itemgetter(*map(_EVENT.index, IDENTITY))
INSERT_EVENT = Insert("events", _EVENT, "ON CONFLICT DO NOTHING")

_PROJECTED: set[type[Event]] = {
    *(LlmCallStarted, LlmCallCompleted, LlmCallFailed, SessionCreated, SessionModelChanged),
    *(SessionRenamed, CapturedMessage, CapturedSetup),
}
"""Events that change other tables than `events`."""

PROJECTED_TOPICS = frozenset(
    kind.topic_of() for kind in _PROJECTED if not issubclass(kind, CapturedMessage | CapturedSetup)
)
"""The topics of those that do so without any content."""

INSERT_TAG = """
    INSERT INTO call_tags (key, value, call_id)
    SELECT ?, ?, id FROM calls WHERE request_id = ? AND attempt = ?
    ON CONFLICT DO NOTHING
"""


def _latest(column: str) -> str:
    """The latest value of a session's column, where one was said."""
    return (
        f"{column} = CASE WHEN excluded.last_us >= sessions.last_us"
        f" THEN coalesce(excluded.{column}, sessions.{column})"
        f" ELSE coalesce(sessions.{column}, excluded.{column}) END"
    )


UPSERT_SESSION = Insert(
    "sessions",
    ("session_id", "first_us", "last_us", "model", "tags", "name"),
    f"""
    ON CONFLICT (session_id) DO UPDATE SET
        first_us = {lesser("sessions.first_us", "excluded.first_us")},
        last_us = {greater("sessions.last_us", "excluded.last_us")},
        tags = coalesce(excluded.tags, sessions.tags),
        {_latest("model")},
        {_latest("name")}
    """,
)


class Batch:
    """Envelopes, encoded and sorted by the statement that stores them.

    It is made outside of the transaction: `add` takes as many at a time as the event loop can spare, and
    `complete` ends it.
    """

    def __init__(self) -> None:
        # The values of events, row after row. Here and in the rows of calls, a run's name stands for its number.
        self._events: Values = []
        self._starts: dict[tuple[str, int], Values] = {}  # by request and attempt, and
        self._more_starts: list[Values] = []  # those that came again
        self._completed: list[Values] = []
        self._failed: list[Values] = []
        self._tags: list[Values] = []
        self._ended: list[tuple[str, int, int]] = []  # calls with usage: request, attempt and begin
        # Of each session the model, the tags and the name:
        self._told: dict[str, tuple[str | None, str | None, str | None]] = {}
        self._captured: list[Envelope] = []
        # What `complete` makes of them:
        self._calls: list[tuple[Insert, Values]] = []
        self._sessions: Values = []
        self._runs: list[RunSpan] = []

    @classmethod
    def of(cls, envelopes: Iterable[Envelope]) -> Self:
        """A complete batch of these envelopes, for where no event loop waits."""
        batch = cls()
        batch.add(envelopes)
        batch.complete()
        return batch

    def add(self, envelopes: Iterable[Envelope]) -> None:
        """Take in more envelopes, about 5 microseconds of CPU each."""
        for envelope in envelopes:
            self._add(envelope)

    def complete(self, clean: Callable[[str], str] | None = None) -> None:
        """Join the rows that belong together. Call it once, after the last `add` and before `write`.

        Args:
            clean: Makes a text that the database takes of one that it doesn't. With it every value is looked at,
                and an impossible count is unknown. Without it the database finds out, which costs nothing as long
                as all is well.
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
        if clean is not None:
            for run in self._runs:
                run.run_id = clean(run.run_id)
            for values in (self._events, *(values for _, values in self._calls), *self._tags, self._sessions):
                _make_storable(values, clean)

    def _column(self, name: str) -> list[Any]:
        return self._events[_EVENT.index(name) :: len(_EVENT)]

    def write(
        self, statements: Statements, number_of: Callable[[RunSpan], int], *, events: bool = True
    ) -> dict[str, int]:
        """Execute the statements that store the batch, once.

        Args:
            statements: The connection, in a transaction.
            number_of: Notes a run and returns its number.
            events: Whether the events are to be stored, too. Without them, they are stored already.

        Returns:
            The numbers of the runs, by name.
        """
        numbers = {run.run_id: number_of(run) for run in self._runs}
        if self._captured:
            store_content(statements, self._captured, numbers)
        for insert, values, at in (
            (INSERT_EVENT, self._events, _EVENT_RUN),
            *((*call, RUN) for call in self._calls),
        ):
            if values and (events or insert is not INSERT_EVENT):
                column = slice(at, None, len(insert.columns))
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
            row[_EVENT_TAGS] = json_text(tags) if tags else None
        row.append(topic_of(data))
        self._events += row
        if type(data) not in _PROJECTED:
            return
        match data:
            case LlmCallStarted() | LlmCallCompleted() | LlmCallFailed() if envelope.request_id is not None:
                self._note_call(envelope.request_id, envelope, data, list(_identity(row)))
            case SessionCreated() if envelope.session_id is not None:
                tags_json = json_text(data.tags) if data.tags else None
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
        identity: Values,
    ) -> None:
        attempt = 1 if envelope.attempt is None else envelope.attempt
        identity[ATTEMPT] = attempt
        run_id, ts_us = envelope.run_id, envelope.ts_us
        if isinstance(data, LlmCallStarted):
            start = started_row(data, identity, run_id, ts_us)
            if (request_id, attempt) in self._starts:
                self._more_starts.append(start)
            else:
                self._starts[request_id, attempt] = start
        else:
            if isinstance(data, LlmCallCompleted):
                self._completed.append(completed_row(data, identity, run_id, ts_us))
            else:
                self._failed.append(failed_row(data, identity, run_id, ts_us))
            if data.usage is not None:
                self._ended.append((request_id, attempt, began(data, ts_us)))
        for tag, value in (envelope.tags or {}).items():
            self._tags.append([tag, value, request_id, attempt])

    def _joined(self, ends: list[Values]) -> list[Values]:
        """Rows of calls that start and end in this batch. They are taken out of the starts and out of `ends`."""
        whole: list[Values] = []
        alone: list[Values] = []
        for end in ends:
            start = self._starts.pop((end[REQUEST], end[ATTEMPT]), None)  # type: ignore[arg-type]
            if start is None:
                alone.append(end)
            else:
                whole.append(whole_row(start, end))
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


def _flat(rows: Iterable[Sequence[SqlValue]]) -> Values:
    return list(chain.from_iterable(rows))


def _make_storable(values: Values, clean: Callable[[str], str]) -> None:
    for index, value in enumerate(values):
        if isinstance(value, str):
            values[index] = clean(value)
        elif isinstance(value, int) and not -MAX_INT64 <= value <= MAX_INT64:
            values[index] = None

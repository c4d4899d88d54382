"""The rows of calls and sessions that are derived from events, grouped by the statement that stores them.

Every statement is idempotent. A later event only fills columns that are NULL. So the rows do not depend on the
batches, or on the order of a start and its end. A short call with start and end in one batch is written once, as
one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.events import Event
from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed, LlmCallImported, LlmCallStarted
from callboard.bus.events.sessions import SessionCreated, SessionModelChanged, SessionRenamed
from callboard.bus.log import Log

from ..call_columns import CallFilter
from ..prices.rows import MAX_INT64
from ..prices.table import PriceTable
from .call_rows import (
    ATTEMPT,
    IDENTITY,
    REQUEST,
    REVISION,
    UPSERT_COMPLETED,
    UPSERT_FAILED,
    UPSERT_IMPORTED,
    UPSERT_STARTED,
    UPSERT_STARTED_COMPLETED,
    UPSERT_STARTED_FAILED,
    USAGE_COLUMNS,
    Values,
    began,
    completed_row,
    condition,
    failed_row,
    imported_row,
    json_text,
    nano_under,
    started_row,
    usage_of,
    whole_row,
)
from .comparison import Group, add_repriced, add_to_sums, session_of
from .connection import Insert, Row, SqlValue, Statements, greater, in_parts, lesser, placeholders
from .pricing import table_of
from .sums import current_runs

PROJECTED: frozenset[type[Event]] = frozenset(
    (
        *(LlmCallStarted, LlmCallCompleted, LlmCallFailed, LlmCallImported),
        *(SessionCreated, SessionModelChanged, SessionRenamed),
    )
)
"""The types of events that contain no captured content and change other tables than `events`."""

PROJECTED_TOPICS = frozenset(kind.topic_of() for kind in PROJECTED)
"""The topics of `PROJECTED`."""

INSERT_TAG = """
    INSERT INTO call_tags (key, value, call_id)
    SELECT ?, ?, id FROM calls WHERE request_id = ? AND attempt = ?
    ON CONFLICT DO NOTHING
"""
_SESSION = IDENTITY.index("session_id")

_OF_CALLS = (LlmCallStarted, LlmCallCompleted, LlmCallFailed, LlmCallImported)

_SessionFields = tuple[str | None, str | None, str | None]


def _latest(column: str) -> str:
    """The SQL that sets a session's column to the value from the latest event that has one."""
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


class CallRows(NamedTuple):
    """Rows of calls that one statement stores."""

    insert: Insert
    rows: list[Values]
    """The rows, with a placeholder for the run's number."""
    begin: bool
    """Whether the rows come from start events. If these events are new, the calls have no row yet."""


class Projection:
    """The rows that are derived from some events. Call `add` for the events, and then `complete`."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, int], Values] = {}  # by request and attempt
        self._more_starts: list[Values] = []  # repeated starts
        self._completed: list[Values] = []
        self._failed: list[Values] = []
        self._imported: dict[str, Values] = {}  # by request
        # The rows from `take_in`: of completed calls, and of failed calls.
        self._complete_calls: tuple[list[Values], list[Values]] = [], []
        self._session_fields: dict[str, _SessionFields] = {}  # of each session the model, the tags and the name
        self._corrected: dict[int, list[int]] = {}  # calls to price again, by the number of the repricing
        self.tags: list[Values] = []
        """The tags of calls, as rows of tag, value, request and attempt."""
        self.ended: list[tuple[str, int, int]] = []
        """Calls with usage, as request, attempt and start."""
        self.calls: tuple[CallRows, ...] = ()
        """The rows of calls, set by `complete`."""

    def add(
        self, event: Event, run: str | int, ts_us: int, identity: Values, tags: Mapping[str, str] | None
    ) -> None:
        if isinstance(event, _OF_CALLS):
            if identity[REQUEST] is not None:
                self._note_call(event, run, ts_us, identity, tags)
            return
        session_id = identity[_SESSION]
        if not isinstance(session_id, str):
            return
        match event:
            case SessionCreated():
                tags_json = json_text(event.tags) if event.tags else None
                self._note_session(session_id, event.model, tags_json, event.name)
            case SessionModelChanged():
                self._note_session(session_id, event.current)
            case SessionRenamed():
                self._note_session(session_id, name=event.name)

    def complete(self) -> None:
        """Join the rows that belong together. Call this once, after the last `add`."""
        completed, failed = self._complete_calls
        self.calls = (
            CallRows(UPSERT_STARTED_COMPLETED, completed + self._joined(self._completed), begin=True),
            CallRows(UPSERT_STARTED_FAILED, failed + self._joined(self._failed), begin=True),
            CallRows(UPSERT_STARTED, list(self._starts.values()), begin=True),
            CallRows(UPSERT_STARTED, self._more_starts, begin=False),
            CallRows(UPSERT_FAILED, self._failed, begin=False),
            CallRows(UPSERT_COMPLETED, self._completed, begin=False),
            CallRows(UPSERT_IMPORTED, list(self._imported.values()), begin=False),
        )

    def take_in(self, other: Projection) -> None:
        """Add the rows of another complete projection, which is not changed."""
        completed, failed, starts, more_starts, failed_alone, completed_alone, imported = (
            of.rows for of in other.calls
        )
        self._complete_calls[0].extend(completed)
        self._complete_calls[1].extend(failed)
        for start in starts:
            self._note_start([*start])  # a copy, because the row is changed when its end arrives
        self._more_starts += more_starts
        self._failed += failed_alone
        self._completed += completed_alone
        for row in imported:
            self._note_imported(row)
        self.tags += other.tags
        self.ended += other.ended
        for session_id, fields in other._session_fields.items():
            self._note_session(session_id, *fields)

    def sessions(self, times: Mapping[str, tuple[int, int]]) -> Values:
        """The values for `UPSERT_SESSION`, row after row."""
        nothing = (None, None, None)
        return flat((name, *between, *self._session_fields.get(name, nothing)) for name, between in times.items())

    def write_before_calls(self, statements: Statements) -> None:
        """Remove the repriced costs of calls that are corrected. Call this before the calls' rows are stored."""
        if self._imported:
            corrections = [(str(row[REQUEST]), int(str(row[REVISION]))) for row in self._imported.values()]
            self._corrected = remove_outdated_costs(statements, corrections)

    def write_behind_calls(self, statements: Statements) -> None:
        """Store the data of calls that is in other tables. Call this after the calls' rows are stored."""
        if self.tags:
            statements.run_many(INSERT_TAG, self.tags)
        for run, ids in self._corrected.items():
            add_costs_of(statements, run, ids)
        if self.ended:
            add_late_costs(statements, self.ended)

    def make_storable(self, clean: Callable[[str], str]) -> None:
        """Make every text acceptable for the database, and set impossible counts to unknown."""
        for _, rows, _ in self.calls:
            for row in rows:
                make_storable(row, clean)
        for tag in self.tags:
            make_storable(tag, clean)
        for name, (model, tags, title) in self._session_fields.items():
            fields: Values = [model, tags, title]
            make_storable(fields, clean)
            self._session_fields[name] = tuple(fields)  # type: ignore[assignment]  # still three

    def _note_session(
        self, session_id: str, model: str | None = None, tags: str | None = None, name: str | None = None
    ) -> None:
        before = self._session_fields.get(session_id, (None, None, None))
        self._session_fields[session_id] = (model or before[0], tags or before[1], name or before[2])

    def _note_call(
        self,
        event: LlmCallStarted | LlmCallCompleted | LlmCallFailed | LlmCallImported,
        run: str | int,
        ts_us: int,
        identity: Values,
        tags: Mapping[str, str] | None,
    ) -> None:
        if identity[ATTEMPT] is None:
            identity[ATTEMPT] = 1
        call: Any = (identity[REQUEST], identity[ATTEMPT])
        if isinstance(event, LlmCallImported):
            self._note_imported(imported_row(event, identity, run, ts_us))
            if event.usage is not None:
                self.ended.append((*call, ts_us))
        elif isinstance(event, LlmCallStarted):
            start = started_row(event, identity, run, ts_us)
            if event.reason == "taken_up":  # the row was stored when the reply was first requested
                self._more_starts.append(start)
            else:
                self._note_start(start)
        else:
            if isinstance(event, LlmCallCompleted):
                self._completed.append(completed_row(event, identity, run, ts_us))
            else:
                self._failed.append(failed_row(event, identity, run, ts_us))
            if event.usage is not None:
                self.ended.append((*call, began(event, ts_us)))
        if tags:
            self.tags += [[tag, value, *call] for tag, value in tags.items()]

    def _note_imported(self, row: Values) -> None:
        """Keep the latest revision of each call, because one statement can't change a row twice."""
        before = self._imported.get(str(row[REQUEST]))
        if before is None or int(str(before[REVISION])) < int(str(row[REVISION])):
            self._imported[str(row[REQUEST])] = row

    def _note_start(self, start: Values) -> None:
        call: Any = (start[REQUEST], start[ATTEMPT])
        if call in self._starts:
            self._more_starts.append(start)
        else:
            self._starts[call] = start

    def _joined(self, ends: list[Values]) -> list[Values]:
        """Join the rows of calls that start and end in these events, and remove them from starts and `ends`."""
        complete: list[Values] = []
        alone: list[Values] = []
        for end in ends:
            start = self._starts.pop((end[REQUEST], end[ATTEMPT]), None)  # type: ignore[arg-type]
            if start is None:
                alone.append(end)
            else:
                complete.append(whole_row(start, end))
        ends[:] = alone
        return complete


def joined(several: Iterable[Projection]) -> Projection:
    result = Projection()
    for one in several:
        result.take_in(one)
    result.complete()
    return result


def flat(rows: Iterable[Sequence[SqlValue]]) -> Values:
    return list(chain.from_iterable(rows))


def make_storable(values: Values, clean: Callable[[str], str]) -> None:
    """Make every text of a list acceptable for the database, and set impossible numbers to unknown."""
    for index, value in enumerate(values):
        if isinstance(value, str):
            values[index] = clean(value)
        elif isinstance(value, int) and not -MAX_INT64 <= value <= MAX_INT64:
            values[index] = None


# --- Late costs of a repricing ---
#
# A repricing covers the calls that started before the repricing ended. Such a call may end later, and has no usage
# until its end. It is priced in the transaction that stores its end, so its usage is never visible without that
# cost. The same rule applies to an unfinished run that has already passed the call. A repricing that was undone
# before the call ended doesn't cover the call.


_log = Log("tracestore.late_costs")

ROUNDED_US = 1_000_000
"""The tolerance for the start of a call, in microseconds.

The start is computed from the end and the rounded latency, and a clock may be set back.
"""

_RUN_COLUMNS = "id, version, filter, replaced, base, by_session, finished_us, done"
_RUNS = f"""
    SELECT {_RUN_COLUMNS}
      FROM reprice_run
     WHERE (finished_us > ? AND undone_us IS NULL) OR (finished_us IS NULL AND done > 0)
     ORDER BY finished_no IS NULL, finished_no, id
"""
_ENDED = """
    SELECT c.id
      FROM (VALUES {names}) AS j
      JOIN calls AS c ON c.request_id = j.column1 AND c.attempt = j.column2
"""
_LATE = f"""
    SELECT c.id, c.ts_us, c.day, c.provider, c.model, c.served_model, c.priced_as,
           {{session}}, c.cost_nano, {{before}}, {", ".join(f"c.{name}" for name in USAGE_COLUMNS)}
      FROM calls AS c
     WHERE c.id IN ({{ids}}) AND c.usage_source IS NOT NULL
       AND {{covered}}
       AND NOT EXISTS (SELECT 1 FROM call_cost AS own WHERE own.run = ? AND own.call_id = c.id)
       AND {{condition}}
"""


class _Run(NamedTuple):
    """A repricing that may cover a late call, as a row of `reprice_run`."""

    id: int
    version: str
    where: str
    replaced: str
    base: int | None
    by_session: int
    finished_us: int | None
    done: int


def add_late_costs(statements: Statements, ended: Sequence[tuple[str, int, int]]) -> None:
    """Price calls with newly stored ends, under every repricing that covers them."""
    found = statements.run(_RUNS, (min(began_us for _, _, began_us in ended) - ROUNDED_US,))
    if not found:
        return
    names = [(request, attempt) for request, attempt, _ in ended]
    for some in in_parts(names):
        sql = _ENDED.format(names=", ".join(["(?, ?)"] * len(some)))
        ids = [number for (number,) in statements.run(sql, [value for name in some for value in name])]
        for run in (_Run(*row) for row in found if ids):
            try:
                _add_costs_of(statements, run, ids)
            except StoreError as error:  # storing the end of a call is more important than its cost
                _log.warning("not_repriced", repricing=run.id, error=str(error))


def _add_costs_of(statements: Statements, run: _Run, ids: Sequence[SqlValue]) -> None:
    lies_on = msgspec.json.decode(run.replaced or "[]", type=list[int])
    before = nano_under(current_runs(statements) if run.finished_us is None else lies_on)
    where = msgspec.json.decode(run.where, type=CallFilter)
    which, values = condition(where, statements.dialect, before)
    covered, end = ("c.id <= ?", run.done) if run.finished_us is None else ("c.ts_us < ?", run.finished_us)
    sql = _LATE.format(
        session=session_of(bool(run.by_session)),
        before=before,
        ids=placeholders(len(ids)),
        covered=covered,
        condition=which,
    )
    rows = statements.run(sql, [*ids, end, run.id, *values])
    if not rows:
        return
    table = table_of(statements, run.version)
    groups = [_priced(statements, run, table, row) for row in rows]
    add_repriced(statements, run.id, groups)
    if run.finished_us is None:
        add_to_sums(statements, "reprice_sum", run.id, groups)
    for (above,) in statements.run("SELECT id FROM reprice_run WHERE base = ? AND finished_us IS NULL", (run.id,)):
        add_to_sums(statements, "reprice_sum", above, map(_of_base, groups))


# --- Corrections of imported calls ---
#
# Costs are append-only, and a corrected call has other tokens. So the transaction of the correction removes the
# call's cost under each repricing, and stores a new cost for the new tokens.


_OUTDATED = """
    SELECT DISTINCT c.id, k.run
      FROM (VALUES {names}) AS j
      JOIN calls AS c ON c.request_id = j.column1 AND c.attempt = 1 AND c.revision < j.column2
      JOIN call_cost AS k ON k.call_id = c.id AND k.run IN (SELECT id FROM reprice_run)
"""


def remove_outdated_costs(statements: Statements, corrections: Sequence[tuple[str, int]]) -> dict[int, list[int]]:
    """Remove the costs of calls with an older revision. Return these calls, by the number of the repricing."""
    found: dict[int, list[int]] = {}
    if not statements.run("SELECT 1 FROM reprice_run LIMIT 1"):
        return found
    for some in in_parts(corrections):
        sql = _OUTDATED.format(names=", ".join(["(?, ?)"] * len(some)))
        for call_id, run in statements.run(sql, [value for pair in some for value in pair]):
            found.setdefault(int(run), []).append(int(call_id))
    if found:
        from .expiry import allowed  # lazy: programs that only make calls don't need it

        with allowed(statements, MAX_INT64):
            for run, ids in found.items():
                statements.change(
                    f"DELETE FROM call_cost WHERE run = ? AND call_id IN ({placeholders(len(ids))})", [run, *ids]
                )
    return found


def add_costs_of(statements: Statements, run: int, ids: Sequence[int]) -> None:
    """Price corrected calls again under a repricing that had priced them, even if that repricing was undone."""
    rows = statements.run(f"SELECT {_RUN_COLUMNS} FROM reprice_run WHERE id = ?", (run,))
    for row in rows:
        _add_costs_of(statements, _Run(*row), ids)


def _priced(statements: Statements, run: _Run, table: PriceTable, row: Row) -> Group:
    """Store the cost of a call. Return the amounts that the call adds to the sums of the run."""
    call_id, ts_us, day, provider, model, served, priced_as, session, at_call, before, *counts = row
    usage = usage_of(counts)
    assert usage is not None  # the query selects only calls with usage
    cost = table.price(model, usage, ts_us, served_model=served, priced_as=priced_as)
    after = cost.nano_usd
    statements.run(
        "INSERT INTO call_cost (run, call_id, cost_nano, reason) VALUES (?, ?, ?, ?)",
        (run.id, call_id, after, cost.reason),
    )
    added = at_call if run.base is not None else before  # with a base, the sums already include the base's costs
    return Group(
        provider=provider,
        model=model,
        day=day,
        session=session,
        calls=1,
        unpriced=int(after is None),
        after=after or 0,
        unpriced_at_call=int(at_call is None),
        at_call=at_call or 0,
        unpriced_before=int(added is None),
        before=added or 0,
        newly_priced=int(before is None and after is not None),
        newly_priced_nano=(after or 0) if before is None else 0,
        no_longer_priced=int(after is None and before is not None),
        no_longer_priced_nano=(before or 0) if after is None else 0,
    )


def _of_base(of: Group) -> Group:
    """Convert the late costs under an earlier run to sums for later runs. The earlier run's costs are the later
    runs' costs before repricing.
    """
    return Group(
        provider=of.provider,
        model=of.model,
        day=of.day,
        session="",
        calls=0,
        unpriced=0,
        after=0,
        unpriced_at_call=0,
        at_call=0,
        unpriced_before=of.unpriced - of.unpriced_at_call,
        before=of.after - of.at_call,
    )

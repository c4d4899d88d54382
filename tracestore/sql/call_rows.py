"""Calls in SQL: their columns, the rows that events fill, filters, dimensions, and the current cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from callboard.bus.clock import US_PER_DAY, iso_day, to_us
from callboard.bus.errors import ErrorClass
from callboard.bus.events import Event
from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed, LlmCallImported, LlmCallStarted
from callboard.bus.values.usage import UNANSWERED, UNCLEAR, Cost, CostSource, TokenUsage, UsageSource

from ..call_columns import COLUMNS, DIMENSIONS, IMPORTED, OWN, CallFilter, Column
from ..codec import storable_text
from .connection import Dialect, Insert, Row, Sql, SqlValue

# --- Columns of usage and costs ---
#
# The columns are named after the fields of `TokenUsage` and `Cost`.


TOKEN_COUNTS = tuple(name for name in TokenUsage.__struct_fields__ if name.endswith("_tokens"))
"""The counts of tokens; columns and fields have the same names."""

USAGE_COLUMNS = (*TOKEN_COUNTS, "usage_source", "usage_raw", "usage_details", "service_tier")

_COST_FIELDS = {
    "nano": "nano_usd",
    "source": "source",
    "version": "pricing_version",
    "reason": "reason",
    "computed_nano": "computed_nano_usd",
}
"""The columns of a cost without their prefix, with the matching fields of `Cost`."""


def cost_columns(prefix: str) -> tuple[str, ...]:
    """The columns of a cost: ``cost`` at call time, or ``now`` for the requested cost."""
    return tuple(f"{prefix}_{name}" for name in _COST_FIELDS)


_counts_in = attrgetter(*TOKEN_COUNTS)
_cost_in = attrgetter(*_COST_FIELDS.values())
_NO_USAGE: list[SqlValue] = [None] * len(USAGE_COLUMNS)
_NO_COST: list[SqlValue] = [None] * len(_COST_FIELDS)
_details_decoder = msgspec.json.Decoder(dict[str, int])
_tags_decoder = msgspec.json.Decoder(dict[str, str])


def usage_values(usage: TokenUsage | None) -> list[SqlValue]:
    if usage is None:
        return _NO_USAGE
    raw = None if usage.raw is None else bytes(usage.raw).decode("utf-8", "replace")
    details = json_text(usage.details) if usage.details else None
    return [*_counts_in(usage), str(usage.source), raw, details, usage.service_tier]


def usage_of(values: Row | list[Any]) -> TokenUsage | None:
    """The usage in the values of `USAGE_COLUMNS`; None if a call has none."""
    *counts, source, raw, details, tier = values
    if source is None:
        return None
    reported = {name: count for name, count in zip(TOKEN_COUNTS, counts, strict=True) if count is not None}
    return TokenUsage(
        **reported,
        source=UsageSource(source),
        raw=None if raw is None else msgspec.Raw(raw.encode()),
        details=None if details is None else _details_decoder.decode(details),
        service_tier=tier,
    )


def cost_values(cost: Cost | None) -> list[SqlValue]:
    if cost is None:
        return _NO_COST
    nano, source, *others = _cost_in(cost)
    return [nano, str(source), *others]


def cost_of(values: Row) -> Cost | None:
    """The cost in the values of `cost_columns`; None if a call has none."""
    fields = dict(zip(_COST_FIELDS.values(), values, strict=True))
    source = fields.pop("source")
    return None if source is None else Cost(source=CostSource(source), **fields)


def tags_of(text: str | None) -> dict[str, str]:
    return _tags_decoder.decode(text) if text else {}


def json_text(value: object) -> str:
    """Encode a value as JSON. Half a surrogate pair becomes a question mark."""
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


# --- The rows of calls ---
# The start and the end of an attempt each fill the columns of `CallRow` for which they have a field.


Values = list[SqlValue]

IDENTITY = ("session_id", "turn_id", "request_id", "attempt", "message_id", "caused_by", "tags")
"""The columns that events and calls have in common."""

_SHARED = (*IDENTITY, "run", "ts_us", "day", "provider", "model", "status")
"""The columns that the start and the end of an attempt fill with the same values, and `status`, whose values
differ.
"""

REQUEST, ATTEMPT, RUN, STATUS = map(_SHARED.index, ("request_id", "attempt", "run", "status"))

_EVENT_FIELDS = {"error_message": "message", "reserved_nano": "reserved_nano_usd"}
"""The fields of events whose columns have another name."""

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
    """The conversion of a field to the value of a column; None if no conversion is needed."""
    if name in ("stop_reason", "error_class"):
        return lambda value: None if value is None else str(value)  # an enum member becomes text
    if column is not None and column.kind == "json":
        return lambda value: json_text(value) if value else None
    if column is not None and column.kind == "bool":
        # A default is stored as NULL, so that a later event can fill it in.
        return int if column.default is None else lambda value: 1 if value else None
    return None


_START = _Filled(LlmCallStarted)
_COMPLETION = _Filled(LlmCallCompleted, but=_START.columns)
_FAILURE = _Filled(LlmCallFailed, but=_START.columns)

_IMPORT = _Filled(LlmCallImported)

_STARTED = (*_START.columns, "started_us")
_ENDED = ("finished_us", *USAGE_COLUMNS, *cost_columns("cost"))
_COMPLETED = (*_ENDED, *_COMPLETION.columns, "retry_count")
_FAILED = (*_ENDED, *_FAILURE.columns)
_IMPORTED = (*_ENDED, *_IMPORT.columns, "started_us")


def _upsert(columns: tuple[str, ...], overwrite: Sequence[str]) -> Insert:
    """An INSERT of a call that updates an existing row. `overwrite` columns are set; other columns are set only if
    they are NULL.

    The shared columns were set by the first event. They are not set again, because SQLite would rewrite every
    index on a column in the statement, even without a change.
    """
    changes = [
        _set(name) if name in overwrite else f"{name} = coalesce(calls.{name}, excluded.{name})"
        for name in columns
        if name in overwrite or name not in _SHARED
    ]
    return Insert("calls", columns, f"ON CONFLICT (request_id, attempt) DO UPDATE SET {', '.join(changes)}")


def _set(name: str) -> str:
    """The change that sets a column.

    If another process starts an attempt again to resume its reply, the first start counts.
    """
    if name in ("ts_us", "day"):
        return f"{name} = CASE WHEN calls.started_us IS NULL THEN excluded.{name} ELSE calls.{name} END"
    return f"{name} = excluded.{name}"


# A start event sets the start time, and an end event sets the outcome. All other columns keep the value that was
# set first.
UPSERT_STARTED = _upsert((*_SHARED, *_STARTED), ("ts_us", "day"))
UPSERT_COMPLETED = _upsert((*_SHARED, *_COMPLETED), ("status",))
UPSERT_FAILED = _upsert((*_SHARED, *_FAILED), ("status",))
UPSERT_STARTED_COMPLETED = _upsert((*_SHARED, *_STARTED, *_COMPLETED), ("ts_us", "day", "status"))
UPSERT_STARTED_FAILED = _upsert((*_SHARED, *_STARTED, *_FAILED), ("ts_us", "day", "status"))


# A correction replaces the whole outcome. The position in the tree is kept unless the correction has one.
_STAY = tuple(name for name in _IMPORT.columns if name.startswith(("parent_", "root_", "depth")))
_CORRECTED = ", ".join(
    f"{name} = coalesce(excluded.{name}, calls.{name})" if name in _STAY else f"{name} = excluded.{name}"
    for name in ("status", *_IMPORTED)
    if name not in ("started_us", "origin")
)
UPSERT_IMPORTED = Insert(
    "calls",
    (*_SHARED, *_IMPORTED),
    f"ON CONFLICT (request_id, attempt) DO UPDATE SET {_CORRECTED}"
    " WHERE coalesce(calls.revision, -1) < excluded.revision",
)
REVISION = len(_SHARED) + len(_ENDED) + _IMPORT.columns.index("revision")
"""The place of the revision in a row of an imported call."""


def started_row(event: LlmCallStarted, identity: Values, run: str | int, ts_us: int) -> Values:
    """The row of a started call. In this and the next functions, `run` is a run's number or a placeholder."""
    shared = (*identity, run, ts_us, ts_us // US_PER_DAY, event.provider, event.model, "started")
    return [*shared, *_START.values(event), ts_us]


def completed_row(event: LlmCallCompleted, identity: Values, run: str | int, ts_us: int) -> Values:
    row = _ended(event, identity, run, ts_us, "completed")
    row += _COMPLETION.values(event)
    attempt = identity[ATTEMPT]
    assert isinstance(attempt, int)
    row.append(attempt - 1)
    return row


def failed_row(event: LlmCallFailed, identity: Values, run: str | int, ts_us: int) -> Values:
    status = "cancelled" if event.error_class == ErrorClass.CANCELLED else "failed"
    row = _ended(event, identity, run, ts_us, status)
    row += _FAILURE.values(event)
    return row


def imported_row(event: LlmCallImported, identity: Values, run: str | int, ts_us: int) -> Values:
    """The row of an imported call. If the file gives no latency, the end is unknown and equals the start."""
    cancelled = event.error_class == ErrorClass.CANCELLED
    status = "completed" if event.error_class is None else "cancelled" if cancelled else "failed"
    shared = (*identity, run, ts_us, ts_us // US_PER_DAY, event.provider, event.model, status)
    ended = (ts_us + (event.latency_ms or 0) * 1000, *usage_values(event.usage), *cost_values(event.cost))
    return [*shared, *ended, *_IMPORT.values(event), ts_us]


def _ended(
    event: LlmCallCompleted | LlmCallFailed, identity: Values, run: str | int, ts_us: int, status: str
) -> Values:
    began_us = began(event, ts_us)
    shared = (*identity, run, began_us, began_us // US_PER_DAY, event.provider, event.model, status)
    return [*shared, ts_us, *usage_values(event.usage), *cost_values(event.cost)]


def began(event: LlmCallCompleted | LlmCallFailed, ts_us: int) -> int:
    """The start of an attempt that ended at `ts_us`, computed for an end without a stored start."""
    return ts_us - event.latency_ms * 1000


def whole_row(start: Values, end: Values) -> Values:
    """The row of an attempt with its start and end in one batch."""
    start[STATUS] = end[STATUS]
    return start + end[len(_SHARED) :]


# --- The cost of a call ---
#
# A SELECT returns two costs, under separate names. The cost at call time never changes. The current cost is the
# cost under the first current run that covers the call, or under the latest run of a requested price version. A
# call without such a run keeps the cost at call time.

# NULL if the cost at call time applies.
_CURRENT_RUN_OF_CALL = """(
        SELECT cr.run
          FROM current_run AS cr
          JOIN call_cost AS k ON k.run = cr.run AND k.call_id = c.id
         ORDER BY cr.position
         LIMIT 1
    )"""

_RUN_OF_CALL_UNDER = """(
        SELECT v.id
          FROM reprice_run AS v
          JOIN call_cost AS k ON k.run = v.id AND k.call_id = c.id
         WHERE v.version = ? AND v.finished_no IS NOT NULL
         ORDER BY v.finished_no DESC
         LIMIT 1
    )"""

CURRENT_NANO = f"""(
        CASE WHEN {_CURRENT_RUN_OF_CALL} IS NULL THEN c.cost_nano
             ELSE (SELECT k.cost_nano FROM call_cost AS k
                    WHERE k.call_id = c.id AND k.run = {_CURRENT_RUN_OF_CALL})
        END)"""
"""The current cost of a call ``c``, looked up."""

NOW_NANO = "(CASE WHEN cc.call_id IS NULL THEN c.cost_nano ELSE cc.cost_nano END)"
"""The current cost of a call ``c`` in a statement of `with_cost`."""

_WITH_COST = f"""
    SELECT c.*, r.run_id,
           CASE WHEN cc.call_id IS NULL THEN c.cost_version
                ELSE (SELECT v.version FROM reprice_run AS v WHERE v.id = cc.run)
           END AS now_version,
           {NOW_NANO} AS now_nano,
           CASE WHEN cc.call_id IS NULL THEN c.cost_reason ELSE cc.reason END AS now_reason,
           CASE WHEN cc.call_id IS NULL THEN c.cost_source
                WHEN cc.cost_nano IS NULL THEN 'unpriced'
                ELSE 'computed'
           END AS now_source,
           CASE WHEN cc.call_id IS NULL THEN c.cost_computed_nano END AS now_computed_nano
      FROM calls AS c
      JOIN runs AS r ON r.id = c.run
      LEFT JOIN call_cost AS cc
        ON cc.call_id = c.id
       AND cc.run = {{run}}
"""


def with_cost(under: str | None, condition: str = "TRUE", values: Sequence[SqlValue] = ()) -> Sql:
    """A SELECT of calls with the cost at call time and the current cost, or the cost under a price version."""
    run, parameters = (_CURRENT_RUN_OF_CALL, []) if under is None else (_RUN_OF_CALL_UNDER, [under])
    return f"{_WITH_COST.format(run=run)} WHERE {condition}", [*parameters, *values]


_MOST_JOINED = 8
"""The largest number of runs whose costs are joined for all calls in one statement."""


def cost_under(runs: Sequence[int]) -> tuple[str, str]:
    """The SQL for the cost of many calls ``c``, as if these runs were current in this order."""
    if len(runs) > _MOST_JOINED:
        return "", nano_under(runs)
    names = [f"cost_{place}" for place in range(len(runs))]
    joins = "".join(
        f" LEFT JOIN call_cost AS {name} ON {name}.run = {run:d} AND {name}.call_id = c.id"
        for name, run in zip(names, runs, strict=True)
    )
    cases = "".join(f" WHEN {name}.call_id IS NOT NULL THEN {name}.cost_nano" for name in names)
    return joins, f"(CASE{cases} ELSE c.cost_nano END)" if cases else "c.cost_nano"


def with_nano(priced: tuple[str, str], condition: str = "TRUE", values: Sequence[SqlValue] = ()) -> Sql:
    """A SELECT of calls for sums. Its column ``now_nano`` is the cost of a call."""
    joins, nano = priced
    sql = f"SELECT c.*, r.run_id, {nano} AS now_nano FROM calls AS c JOIN runs AS r ON r.id = c.run{joins}"
    return f"{sql} WHERE {condition}", list(values)


def nano_under(runs: Iterable[int]) -> str:
    """The SQL for the cost of a call ``c``, as if these runs were current in this order."""
    of_run = "FROM call_cost AS k WHERE k.run = {:d} AND k.call_id = c.id"
    cases = "".join(
        f" WHEN EXISTS (SELECT 1 {of_run.format(run)}) THEN (SELECT k.cost_nano {of_run.format(run)})"
        for run in runs
    )
    return f"(CASE{cases} ELSE c.cost_nano END)" if cases else "c.cost_nano"


def usage_unknown(row: str) -> str:
    """The SQL condition that the usage of a call is unknown. The condition is never NULL."""
    return (
        f"({row}.usage_source IS NULL AND {row}.cost_nano IS NULL AND ({row}.status = 'started'"
        f" OR coalesce({row}.error_class, '') IN ({_listed(UNANSWERED)})"
        f" OR (coalesce({row}.error_class, '') IN ({_listed(UNCLEAR)}) AND {row}.provider_status IS NULL)))"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


# --- Filters ---
# A `CallFilter` becomes SQL with parameters, never with values in the text.


_EQUAL = ("provider", "session_id", "request_id", "status", "turn_id", "error_class", "key")
"""Fields of a filter that must equal the column of the same name."""


def condition(where: CallFilter, dialect: Dialect, cost: str = CURRENT_NANO) -> Sql:
    """Convert a filter to a condition on ``calls AS c``."""
    parts: list[str] = ["TRUE"]
    values: list[SqlValue] = []

    def add(sql: str, *parameters: SqlValue) -> None:
        parts.append(sql)
        values.extend(parameters)

    if where.since is not None:
        add("c.ts_us >= ?", to_us(where.since))
    if where.until is not None:
        add("c.ts_us < ?", to_us(where.until))
    for name in _EQUAL:
        value = getattr(where, name)
        if value is not None:
            add(f"c.{name} = ?", value)
    if where.model is not None:
        add(*_of_model(where.model, dialect))
    if where.root_turn_id is not None:
        add("(c.root_turn_id = ? OR c.turn_id = ?)", where.root_turn_id, where.root_turn_id)
    if where.origin is not None:
        if where.origin in (OWN, IMPORTED):
            add(f"c.origin IS {'NOT ' if where.origin == IMPORTED else ''}NULL")
        else:
            add("c.origin = ?", where.origin)
    if where.operation is not None:
        add("coalesce(c.operation, 'chat') = ?", where.operation)
    if where.unpriced:
        add(f"c.usage_source IS NOT NULL AND {cost} IS NULL")
    if where.unknown:
        add(usage_unknown("c"))
    if where.min_cost_nano_usd is not None:
        add(f"{cost} >= ?", where.min_cost_nano_usd)
    for key, text in (where.tags or {}).items():
        add("c.id IN (SELECT t.call_id FROM call_tags AS t WHERE t.key = ? AND t.value = ?)", key, text)
    return " AND ".join(parts), values


def _of_model(model: str, dialect: Dialect) -> tuple[str, SqlValue] | tuple[str, SqlValue, SqlValue]:
    name = model.removesuffix("*")
    column = "c.model" if ":" in name else dialect.behind("c.model", ":")
    if name == model:
        return f"{column} = ?", name
    return f"substr({column}, 1, CAST(? AS INTEGER)) = ?", len(name), name


# --- Dimensions of sums ---


_TAG = "tag:"


class Grouping(msgspec.Struct, frozen=True):
    by: tuple[str, ...]
    columns: str
    """The columns, each with a comma before it, for use after other columns."""
    names: tuple[str, ...]
    """The names of `columns`, for GROUP BY."""
    values: tuple[SqlValue, ...]
    """The parameters of `columns`. Pass them exactly once, at the position of `columns`."""

    def key(self, row: Sequence[object]) -> tuple[str, ...]:
        """The first values of a row as text, one for each dimension. NULL becomes an empty text."""
        return tuple(_text(name, value) for name, value in zip(self.by, row, strict=False))

    def listed(self, after: str = "") -> str:
        """The names, with commas between them, and `after` at the end if there are any."""
        return ", ".join(self.names) + (after if self.names else "")


def grouping(by: Sequence[str], row: str, dialect: Dialect) -> Grouping:
    """Build the grouping of calls that a statement names `row`. Raises ValueError for an unknown dimension."""
    columns, values = [], []
    for number, name in enumerate(by):
        if name.startswith(_TAG) and len(name) > len(_TAG):
            columns.append(f"{dialect.tag(f'{row}.tags')} AS g{number}")
            values.append(name.removeprefix(_TAG))
        elif name == "operation":  # earlier versions stored NULL
            columns.append(f"coalesce({row}.operation, 'chat') AS g{number}")
        elif name == "origin":
            columns.append(f"coalesce({row}.origin, '{OWN}') AS g{number}")
        elif name == "root":
            columns.append(f"coalesce({row}.root_turn_id, {row}.turn_id) AS g{number}")
        elif name in DIMENSIONS:
            columns.append(f"{row}.{name} AS g{number}")
        else:
            raise ValueError(f"calls can be grouped by {', '.join(DIMENSIONS)} or tag:KEY, not by {name!r}")
    names = tuple(f"g{number}" for number in range(len(columns)))
    return Grouping(tuple(by), "".join(f", {column}" for column in columns), names, tuple(values))


def _text(name: str, value: object) -> str:
    if name == "day" and isinstance(value, int):
        return iso_day(value)
    return "" if value is None else str(value)

"""What can be asked of the store, and what comes back.

Filters become SQL with parameters, never with values in the text. Both costs of a call are kept apart by name:
the one at call time, which never changes, and the one under the current (or a given) price version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from bus.values.cost_sum import CostSum, usage_is_unknown
from bus.values.messages import RoutingDecision
from bus.values.usage import Cost, CostSource, TokenUsage, UsageSource

from .sql.calls.unknown import usage_unknown
from .sqlite.database import Row
from .sqlite.insert import SqlValue
from .timestamps import to_us

CallStatus: TypeAlias = Literal["started", "completed", "failed", "cancelled"]


class CallFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which calls; what is None doesn't matter. All conditions must hold.

    since, until: when the attempt started, from inclusive to exclusive; microseconds UTC, or an aware datetime.
    provider: the adapter's name. model: as routed; ``provider:name``, or the name alone, and with ``*`` at its end
    any that begin so. status: ``started``, ``completed``, ``failed`` or ``cancelled``. tags: all of them, with
    these values. turn_id: has no index of its own; in a large file say the session too. error_class: a value of
    `ErrorClass`. operation: ``chat``, ``embeddings``, ``image``, ``video_create`` or ``video``.
    unpriced: only calls that have usage but no cost. unknown: only calls of which not even the usage is known, see
    `CostRow`. min_cost_nano_usd: only those that cost at least that much;
    both by the current cost, or the one under the version that is asked for.
    Raises ValueError for a datetime without a time zone.
    """

    since: int | datetime | None = None
    until: int | datetime | None = None
    provider: str | None = None
    model: str | None = None
    session_id: str | None = None
    request_id: str | None = None
    status: CallStatus | None = None
    tags: dict[str, str] | None = None
    turn_id: str | None = None
    error_class: str | None = None
    unpriced: bool = False
    min_cost_nano_usd: int | None = None
    operation: str | None = None
    unknown: bool = False

    def __post_init__(self) -> None:
        for moment in (self.since, self.until):
            if moment is not None:
                to_us(moment)  # which refuses a datetime without a time zone, here and not in some query later

    def condition(self, cost: str | None = None) -> tuple[str, list[SqlValue]]:
        """An SQL condition on ``calls AS c``, and its parameters.

        cost: an SQL expression for a call's nano-USD; None looks its current cost up.
        """
        nano = cost or CURRENT_NANO
        parts: list[str] = ["1"]
        values: list[SqlValue] = []

        def add(sql: str, *parameters: SqlValue) -> None:
            parts.append(sql)
            values.extend(parameters)

        if self.since is not None:
            add("c.ts_us >= ?", to_us(self.since))
        if self.until is not None:
            add("c.ts_us < ?", to_us(self.until))
        if self.provider is not None:
            add("c.provider = ?", self.provider)
        if self.model is not None:
            name, star = self.model.removesuffix("*"), self.model.endswith("*")
            column = "c.model" if ":" in name else "substr(c.model, instr(c.model, ':') + 1)"
            if star:
                add(f"substr({column}, 1, length(?)) = ?", name, name)
            else:
                add(f"{column} = ?", name)
        if self.session_id is not None:
            add("c.session_id = ?", self.session_id)
        if self.request_id is not None:
            add("c.request_id = ?", self.request_id)
        if self.status is not None:
            add("c.status = ?", self.status)
        if self.turn_id is not None:
            add("c.turn_id = ?", self.turn_id)
        if self.error_class is not None:
            add("c.error_class = ?", self.error_class)
        if self.operation is not None:
            add("coalesce(c.operation, 'chat') = ?", self.operation)
        if self.unpriced:
            add(f"c.usage_source IS NOT NULL AND {nano} IS NULL")
        if self.unknown:
            add(usage_unknown("c"))
        if self.min_cost_nano_usd is not None:
            add(f"{nano} >= ?", self.min_cost_nano_usd)
        for key, value in (self.tags or {}).items():
            add("c.id IN (SELECT t.call_id FROM call_tags AS t WHERE t.key = ? AND t.value = ?)", key, value)
        return " AND ".join(parts), values


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one call, as the store knows it. What is None isn't known, or not yet.

    call_id: the row's number in the file, in the order of storing. request_id: of the call, with all its attempts.
    attempt: from 1. started_us, finished_us: of the attempt, microseconds UTC. first_token_ms, latency_ms:
    milliseconds from the call's begin to its first content and to the attempt's end; waiting for a slot and
    earlier attempts are in them.
    provider: the adapter's name. model: ``provider:name`` as routed. requested_model: as the caller named it.
    served_model: what the provider says it ran. priced_as: the ``provider:name`` whose prices it has, if
    another's.
    operation: ``chat``, ``embeddings``, ``image``, ``video_create`` or ``video``. caused_by: the request before
    it, see `Envelope`. reason: ``first``, ``retry`` or ``repair``. estimated_input_tokens: our estimate before it
    was sent. warnings: codes. error_class, error_type, error_message: of a failed one. provider_status: of HTTP.
    retry_count: retries before this attempt. resent: its request was sent twice, for the server had let go of a
    connection that was kept alive. will_retry, delay_seconds: whether another attempt followed, and after how
    long. retry_after_seconds: the provider's hint. usage: None if none is known.
    at_call_time: the cost when it was called; None while the call runs and if it ended without one.
    cost: under the current price version, or the one that was asked for; calls that it doesn't cover keep the
    cost at call time.
    """

    call_id: int
    run_id: str
    request_id: str
    attempt: int
    status: CallStatus
    provider: str
    model: str
    session_id: str | None = None
    turn_id: str | None = None
    message_id: str | None = None
    caused_by: str | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    started_us: int | None = None
    finished_us: int | None = None
    first_token_ms: int | None = None
    latency_ms: int | None = None
    reason: str | None = None
    requested_model: str | None = None
    served_model: str | None = None
    priced_as: str | None = None
    operation: str = "chat"
    streamed: bool | None = None
    routing: RoutingDecision | None = None
    estimated_input_tokens: int | None = None
    stop_reason: str | None = None
    raw_stop_reason: str | None = None
    warnings: tuple[str, ...] = ()
    response_id: str | None = None
    provider_request_id: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    provider_status: int | None = None
    provider_code: str | None = None
    retry_count: int = 0
    resent: bool = False
    will_retry: bool | None = None
    delay_seconds: float | None = None
    retry_after_seconds: float | None = None
    usage: TokenUsage | None = None
    at_call_time: Cost | None = None
    cost: Cost | None = None

    @property
    def unknown(self) -> bool:
        """True if not even the usage is known: it got no answer, or has no end yet."""
        if self.usage is not None or (self.cost is not None and self.cost.nano_usd is not None):
            return False
        return self.status == "started" or usage_is_unknown(self.error_class or "", self.provider_status)

    @property
    def sum(self) -> CostSum:
        """Its part of a sum."""
        return CostSum.of_call(self.usage, self.cost, unknown=self.unknown)


# The current cost: that of the first of the current runs that has one for the call, else the one at call time. The
# run is NULL where the call-time cost holds.
_CURRENT_RUN_OF_CALL = """(
        SELECT cr.run
          FROM current_run AS cr
          JOIN call_cost AS k ON k.run = cr.run AND k.call_id = c.id
         ORDER BY cr.position
         LIMIT 1
    )"""

# The cost under a version: that of its latest run that finished and has one for the call.
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

NOW_NANO = "(CASE WHEN cc.call_id IS NULL THEN c.cost_nano ELSE cc.cost_nano END)"
"""The current cost where `with_cost` has joined it: for `CallFilter.condition`."""

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


def nano_under(runs: Iterable[int]) -> str:
    """An SQL expression for what a call costs if these runs are the current ones, the first of them first."""
    of_run = "FROM call_cost AS k WHERE k.run = {:d} AND k.call_id = c.id"
    cases = "".join(
        f" WHEN EXISTS (SELECT 1 {of_run.format(run)}) THEN (SELECT k.cost_nano {of_run.format(run)})"
        for run in runs
    )
    return f"(CASE{cases} ELSE c.cost_nano END)" if cases else "c.cost_nano"


def with_cost(
    under: str | None, condition: str = "1", values: Sequence[SqlValue] = ()
) -> tuple[str, list[SqlValue]]:
    """A SELECT of calls, with their costs under a version or the current ones, and its parameters.

    condition, values: which calls, and what follows that.
    """
    run, asked = (_CURRENT_RUN_OF_CALL, []) if under is None else (_RUN_OF_CALL_UNDER, [under])
    return f"{_WITH_COST.format(run=run)} WHERE {condition}", [*asked, *values]


_CALL_COLUMNS = """
    id run_id request_id attempt status provider model session_id turn_id message_id caused_by tags
    started_us finished_us first_token_ms latency_ms reason requested_model served_model streamed
    routing estimated_input_tokens stop_reason raw_stop_reason warnings response_id
    provider_request_id error_class error_type error_message provider_status provider_code
    retry_count resent will_retry delay_seconds retry_after_seconds input_tokens output_tokens
    cached_input_tokens cache_creation_input_tokens cache_creation_1h_input_tokens reasoning_tokens
    usage_source usage_raw usage_details service_tier priced_as operation cost_nano cost_source cost_version
    cost_reason cost_computed_nano now_nano now_source now_version now_reason now_computed_nano
""".split()  # noqa: SIM905 - a list of names, not of strings

_COST_PARTS = ("nano", "source", "version", "reason", "computed_nano")

_strings = msgspec.json.Decoder(dict[str, str])
_counts = msgspec.json.Decoder(dict[str, int])
_warnings = msgspec.json.Decoder(tuple[str, ...])
_routing = msgspec.json.Decoder(RoutingDecision)


def calls_query(where: CallFilter | None, under: str | None, limit: int | None) -> tuple[str, list[SqlValue]]:
    """The query behind `TraceStore.calls`, newest first."""
    condition, values = (where or CallFilter()).condition(NOW_NANO)
    priced, values = with_cost(under, condition, values)
    sql = f"""
        WITH priced AS ({priced})
        SELECT {", ".join(_CALL_COLUMNS)}
          FROM priced
         ORDER BY ts_us DESC, id DESC
         LIMIT ?
    """
    return sql, [*values, -1 if limit is None else limit]


def calls_after_query(
    where: CallFilter | None, under: str | None, after_id: int, limit: int
) -> tuple[str, list[SqlValue]]:
    """The query behind `TraceStore.calls_after`: in the order of `call_id`, which is that of their storing."""
    condition, values = (where or CallFilter()).condition()
    page = f"{condition} AND c.id > ? ORDER BY c.id LIMIT ?"
    priced, values = with_cost(under, page, [*values, after_id, limit])
    return f"WITH priced AS ({priced}) SELECT {', '.join(_CALL_COLUMNS)} FROM priced ORDER BY id", values


def call_row(row: Row) -> CallRow:
    """A row of `calls_query` as a CallRow."""
    named = dict(zip(_CALL_COLUMNS, row, strict=True))
    costs = {prefix: [named.pop(f"{prefix}_{part}") for part in _COST_PARTS] for prefix in ("cost", "now")}
    return CallRow(
        call_id=named.pop("id"),
        usage=usage_of(named),
        at_call_time=_cost(*costs["cost"]),
        cost=_cost(*costs["now"]),
        tags=tags_of(named.pop("tags")),
        warnings=_warnings.decode(text) if (text := named.pop("warnings")) else (),
        routing=_routing.decode(text) if (text := named.pop("routing")) else None,
        streamed=_flag(named.pop("streamed")),
        will_retry=_flag(named.pop("will_retry")),
        retry_count=named.pop("retry_count") or 0,
        resent=bool(named.pop("resent")),
        operation=named.pop("operation") or "chat",
        **named,
    )


def tags_of(text: str | None) -> dict[str, str]:
    """Stored tags as a dict."""
    return _strings.decode(text) if text else {}


def usage_of(named: dict[str, object]) -> TokenUsage | None:
    """The usage in columns of a call, which it takes out of `named`; None if there is none."""
    source, raw = named.pop("usage_source"), named.pop("usage_raw")
    details, tier = named.pop("usage_details"), named.pop("service_tier")
    counts = {name: named.pop(name) for name in TokenUsage.__struct_fields__[:6]}
    if source is None:
        return None
    values = {name: count for name, count in counts.items() if count is not None}
    return TokenUsage(
        **values,  # type: ignore[arg-type]
        source=UsageSource(str(source)),
        raw=None if raw is None else msgspec.Raw(str(raw).encode()),
        details=None if details is None else _counts.decode(str(details)),
        service_tier=None if tier is None else str(tier),
    )


def _cost(
    nano: int | None, source: str | None, version: str | None, reason: str | None, computed: int | None
) -> Cost | None:
    return None if source is None else Cost(nano, CostSource(source), version, reason, computed)


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)

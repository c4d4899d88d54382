"""Converts calls, messages and turns of the trace to the form for pages, with each attempt's times, and costs as
text.

A call's latency counts from the start of the call, so it includes waits and earlier attempts. In lists of
attempts, "Took" is the time of that attempt. This module computes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import (
    Envelope,
    Message,
    SessionTurnCompleted,
    SessionTurnStarted,
    StoreError,
    ToolFinished,
    ToolStarted,
)
from callboard.bus.events.codec import fields_of
from callboard.tracestore import CallFilter, CallRow, PriceTable, Store
from callboard.tracestore.call_columns import SHOWN, TurnTree, trees_of
from callboard.tracestore.codec import encode_event

from ..cli.replay import describe
from .access import Refused, Visitor, answer
from .subject import Subject

MOST_TURN_CALLS = 300
MOST_TURN_EVENTS = 3000


# --- Attempts ---


def took_ms(row: CallRow) -> int | None:
    """Milliseconds of the attempt itself, without waits and earlier attempts.

    None while it runs, or if it is unknown for an imported call.
    """
    if row.origin is not None or row.started_us is None or row.finished_us is None:
        return row.latency_ms
    return max(0, row.finished_us - row.started_us) // 1000


def waited_ms(row: CallRow) -> int:
    """Milliseconds of the call before the attempt was sent: waits for a slot or a limit, and earlier attempts."""
    if row.origin is not None or row.latency_ms is None or row.started_us is None or row.finished_us is None:
        return 0
    # The whole milliseconds of the difference: a latency rounded up is not a wait.
    return max(0, row.latency_ms * 1000 - (row.finished_us - row.started_us)) // 1000


def first_ms(row: CallRow) -> int | None:
    """Milliseconds from the start of the attempt to its first content; None without content."""
    return None if row.first_token_ms is None else max(0, row.first_token_ms - waited_ms(row))


def billed(row: CallRow) -> str:
    """Describe whether the attempt's cost is known.

    `known`, `open` while it runs, `unknown` if it may have used tokens, `unpriced` if its usage has no price, or
    `nothing`. A provider that answers with an error bills nothing, and an attempt that was not sent costs nothing.
    """
    if row.status == "started":
        return "open"
    if row.cost is not None and row.cost.nano_usd is not None:
        return "known"
    if row.unknown:
        return "unknown"
    return "nothing" if row.usage is None else "unpriced"


def times_and_cost(row: CallRow) -> dict[str, object]:
    """The common fields of all screens with attempts."""
    return {
        "took_ms": took_ms(row),
        "waited_ms": waited_ms(row),
        "first_ms": first_ms(row),
        "billed": billed(row),
        "nano_usd": None if row.cost is None else row.cost.nano_usd,
    }


def attempt_seen(row: CallRow) -> dict[str, object]:
    """An attempt without the provider's own usage object, whose form is unknown."""
    fields: dict[str, object] = {name: getattr(row, name) for name in row.__struct_fields__}
    if row.usage is not None:
        fields["usage"] = msgspec.structs.replace(row.usage, raw=None)
    fields["facts"] = [(column.label, str(value)) for name, column in SHOWN.items() if (value := fields[name])]
    return fields | times_and_cost(row)


_BRIEF = (
    *("request_id", "session_id", "turn_id", "model", "status", "attempt", "operation"),
    *("started_us", "finished_us", "latency_ms", "first_token_ms", "error_class"),
)


def attempt_in_brief(row: CallRow) -> dict[str, object]:
    output = None if row.usage is None else row.usage.output_tokens
    fields: dict[str, object] = {name: getattr(row, name) for name in _BRIEF}
    return fields | {"output_tokens": output, "unknown": row.unknown} | times_and_cost(row)


# --- Events and messages ---


def envelope_seen(envelope: Envelope) -> dict[str, object]:
    """An envelope for a page: without content, with a short description."""
    fields = {name: value for name, value in fields_of(envelope).items() if value is not None}
    return {
        **fields,
        "event_id": envelope.event_id,
        "words": describe(envelope),
        "data": msgspec.Raw(encode_event(envelope.data)),
    }


def message_seen(message: Message, content: bool) -> dict[str, object]:
    made = message.metadata
    blocks = [block_seen(block) for block in message.content]
    return {
        "id": message.id,
        "role": message.role,
        "steers": message.steers,
        "content": blocks if content else [{"kind": block["kind"]} for block in blocks],
        "model": None if made is None else made.model,
        "request_id": None if made is None else made.request_id,
        "stop_reason": None if made is None else made.stop_reason,
        "nano_usd": None if made is None else made.cost.nano_usd,
        "warnings": () if made is None else made.warnings,
    }


def block_seen(block: msgspec.Struct) -> dict[str, object]:
    """A block of content without its bytes. An image is shown by its size."""
    found: dict[str, object] = {"kind": type(block).__name__.removesuffix("Block").lower()}
    for name in block.__struct_fields__:
        value = getattr(block, name)
        if isinstance(value, bytes):
            found["bytes"] = len(value)
        elif name not in ("provider_raw", "raw", "signature") and value is not None:
            found[name] = [block_seen(each) for each in value] if _is_parts(value) else value
    return found


def _is_parts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, msgspec.Struct) for each in value)


# --- Turns ---


class AttemptBar(msgspec.Struct, frozen=True):
    """An attempt within the bar of its call. Times are in microseconds since the epoch."""

    attempt: int
    model: str | None
    status: str
    error_class: str | None
    start_us: int
    end_us: int | None
    first_ms: int | None
    took_ms: int | None


class Bar(msgspec.Struct):
    """A call or a tool run on the waterfall of a turn. Times are in microseconds since the epoch."""

    kind: Literal["call", "tool"]
    name: str
    start_us: int
    end_us: int | None  # None while it runs
    status: str
    request_id: str | None = None
    attempts: Sequence[AttemptBar] = ()


class Waterfall(msgspec.Struct, frozen=True):
    """The calls, attempts and tools of a turn over time. Times are in microseconds since the epoch."""

    turn_id: str
    start_us: int
    end_us: int | None  # None while the turn runs, or if the trace lacks its end
    status: str | None  # how the turn ended; None while it runs
    bars: Sequence[Bar]  # in the order of their starts


async def turns_seen(store: Store, rows: Sequence[CallRow]) -> list[Waterfall]:
    """The waterfalls of turns, in the order of the rows. Attempts without a turn are left out."""
    found = []
    events: list[Envelope] | None = None
    for row in rows:
        if row.turn_id is None:
            continue
        calls = await store.calls(CallFilter(turn_id=row.turn_id), MOST_TURN_CALLS)
        calls_of_run = [each for each in calls if row.origin is not None or each.run_id == row.run_id]
        if events is None or row.session_id is None:
            events = await _events_of_turns(store, row, since=None if len(rows) > 1 else _began_us(calls_of_run))
        found.append(
            waterfall(row.turn_id, calls_of_run, [each for each in events if each.turn_id == row.turn_id])
        )
    return found


async def _events_of_turns(store: Store, row: CallRow, since: int | None) -> list[Envelope]:
    # A turn that waited for its session started long before its first call, so the search for its own events has
    # no start time.
    topics = {"tool.*": since, SessionTurnStarted.topic_of(): None, SessionTurnCompleted.topic_of(): since}
    if row.session_id is None:
        topics = dict.fromkeys(topics, since)
    return [
        each
        for topic, first in topics.items()
        for each in await store.events(session_id=row.session_id, topic=topic, since=first, limit=MOST_TURN_EVENTS)
    ]


def _began_us(calls: Sequence[CallRow]) -> int:
    return min((row.started_us or 0) - waited_ms(row) * 1000 for row in calls)


def waterfall(turn_id: str, calls: Sequence[CallRow], events: Sequence[Envelope]) -> Waterfall:
    """The calls, attempts and tools of a turn over time."""
    ordered = sorted(calls, key=lambda row: (row.request_id or "", row.attempt))
    bars = [_call_bar(list(group)) for _, group in groupby(ordered, key=lambda row: row.request_id)]
    bars = sorted(bars + _tool_bars(events), key=lambda bar: bar.start_us)
    start_us, end_us = bars[0].start_us, None
    status: str | None = None
    for each in events:
        match each.data:
            case SessionTurnStarted():
                start_us = min(start_us, each.ts_us)
            case SessionTurnCompleted() as data:
                end_us, status = each.ts_us, data.status
            case _:
                pass
    if status is None and calls[0].origin is not None:  # the trace does not record the end of an imported turn
        end_us, status = max(row.finished_us or 0 for row in calls), "imported"
    return Waterfall(turn_id, start_us, end_us, status, bars)


def _call_bar(attempts: Sequence[CallRow]) -> Bar:
    first, last = attempts[0], attempts[-1]
    return Bar(
        kind="call",
        name=last.model or "",
        start_us=(first.started_us or 0) - waited_ms(first) * 1000,
        end_us=last.finished_us,
        status=last.status,
        request_id=last.request_id,
        attempts=[
            AttemptBar(
                row.attempt,
                row.model,
                row.status,
                row.error_class,
                row.started_us or 0,
                row.finished_us,
                first_ms(row),
                took_ms(row),
            )
            for row in attempts
        ],
    )


def _tool_bars(events: Sequence[Envelope]) -> list[Bar]:
    bars: dict[str, Bar] = {}
    for each in sorted(events, key=lambda envelope: envelope.ts_us):
        match each.data:
            case ToolStarted() as data:
                bars[data.tool_use_id] = Bar("tool", data.tool_name, each.ts_us, None, "running")
            case ToolFinished() as data if (bar := bars.get(data.tool_use_id)) is not None:
                bar.end_us = each.ts_us
                bar.status = "failed" if data.is_error else "completed"
            case _:
                pass
    return list(bars.values())


# --- The screen "Call" ---
# It lists the calls of the trace. For one call, it shows every attempt, and the cost line by line.


MOST_CALLS = 500
MOST_VERSIONS = 6
MOST_MESSAGES = 40
"""The maximum number of messages of a prompt that a call's page shows, the latest ones."""


async def trees_seen(store: Store, rows: Sequence[CallRow], limit: int) -> list[list[dict[str, object]]]:
    """The trees of some calls, if they have more than one turn. Parents come before children, with the cost of
    each turn.
    """
    found = [list(tree.walk()) for tree in await trees_of(store.calls, rows, limit)]
    return [[_node_seen(node) for node in nodes] for nodes in found if len(nodes) > 1]


def _node_seen(node: TurnTree) -> dict[str, object]:
    last = node.calls[-1]
    return {
        "id": node.id,
        "depth": node.depth,
        "model": last.model,
        "status": last.status,
        "session_id": last.session_id,
        "request_id": node.calls[0].request_id,
        "started_us": node.calls[0].started_us,
        "attempts": len(node.calls),
        "own": node.own,
        "whole": node.whole,
    }


_FILTERS = ("provider", "model", "session_id", "request_id", "status", "error_class", "operation", "key", "origin")
"""The parameters of a page's request that are fields of `CallFilter`."""


def call_filter(request: Request) -> CallFilter:
    """The filter in a page's request."""
    parameters = request.query_params
    fields: dict[str, object] = {name: parameters[name] for name in _FILTERS if parameters.get(name)}
    for name in ("since", "until"):
        if parameters.get(name):
            fields[name] = moment_of(parameters[name])
    if ":" in parameters.get("tag", ""):
        key, _, value = parameters["tag"].partition(":")
        fields["tags"] = {key: value}
    try:
        return msgspec.convert(fields, CallFilter)
    except (msgspec.ValidationError, ValueError) as error:
        raise Refused(400, str(error)) from None


def moment_of(text: str) -> int:
    """Convert a text to a time in microseconds since the epoch."""
    if not text.isdecimal() or len(text) > 18:
        raise Refused(400, "a time must be a number of microseconds since the epoch")
    return int(text)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "100")
    if not text.isdecimal() or len(text) > 9:
        raise Refused(400, "limit must be a number")
    return int(text)


async def calls(subject: Subject, request: Request) -> Response:
    """The latest matching calls, the newest first. Each attempt is a separate row."""
    where = call_filter(request)
    limit = min(_limit(request), MOST_CALLS)
    await subject.flush()
    async with subject.reading() as store:
        return answer([attempt_seen(row) for row in await store.calls(where, limit)])


async def call(subject: Subject, request: Request) -> Response:
    """One call: its attempts with their costs under each known price version, and its events."""
    request_id = request.path_params["id"]
    visitor: Visitor = request.state.visitor
    await subject.flush()
    async with subject.reading() as store:
        attempts = sorted(await store.calls(CallFilter(request_id=request_id)), key=lambda row: row.attempt)
        if not attempts:
            raise Refused(404, "unknown call")
        engine_prices = None if subject.engine is None else subject.engine.prices
        tables = await _tables(store, attempts, engine_prices)
        events = await store.events(request_id=request_id, limit=200)
        turns = await turns_seen(store, attempts[-1:])
        trees = await trees_seen(store, attempts[-1:], 1)
        prompt = await _prompt(store, attempts[-1], "content" in visitor.scopes)
    return answer(
        {
            "attempts": [attempt_seen(row) for row in attempts],
            "bills": [[_bill(row, table) for table in tables] for row in attempts],
            "events": [envelope_seen(each) for each in events],
            "turn": turns[0] if turns else None,
            "trees": trees,
            "prompt": prompt,
        }
    )


async def _prompt(store: Store, row: CallRow, shown: bool) -> dict[str, object] | None:
    """The captured messages of the call's request, and its captured reply."""
    saved = None if row.session_id is None else await store.saved_session(row.session_id)
    if saved is None:
        return None
    made = [each.metadata.request_id if each.metadata is not None else None for each in saved.messages]
    if row.request_id not in made:
        return None
    at = made.index(row.request_id)
    sent = saved.messages[:at]
    return {
        "shown": shown,
        "system_prompt": saved.setup.system_prompt if shown and saved.setup is not None else None,
        "left_out": max(0, len(sent) - MOST_MESSAGES),
        "messages": [message_seen(each, shown) for each in sent[-MOST_MESSAGES:]],
        "reply": message_seen(saved.messages[at], shown),
    }


async def _tables(store: Store, attempts: Sequence[CallRow], engine_prices: PriceTable | None) -> list[PriceTable]:
    """The tables that priced these attempts, followed by the latest other tables of the trace."""
    costs = [cost for row in attempts for cost in (row.cost, row.at_call_time) if cost is not None]
    versions = dict.fromkeys(cost.pricing_version for cost in costs if cost.pricing_version)
    versions |= dict.fromkeys(run.version for run in await store.reprice_runs() if run.finished_us is not None)
    found = []
    for version in list(versions)[:MOST_VERSIONS]:
        try:
            if engine_prices is not None and engine_prices.version == version:
                found.append(engine_prices)
            else:
                found.append(await store.price_table(version))
        except StoreError:  # the table belongs to another engine and is not in this trace
            continue
    return found


def _bill(row: CallRow, table: PriceTable) -> dict[str, object]:
    if row.usage is None:
        table_fields = {"version": table.version, "label": table.label}
        return {**table_fields, "lines": (), "nano_usd": None, "reason": "usage unknown"}
    found = table.explain(
        row.model,
        row.usage,
        row.started_us or 0,
        served_model=row.served_model,
        priced_as=row.priced_as,
    )
    return {
        "version": table.version,
        "label": table.label,
        "lines": found.components,
        "nano_usd": found.cost.nano_usd,
        "reason": found.cost.reason,
        "rule": found.rule,
        "row": None if found.row is None else found.row.model,
        "note": None if found.row is None else found.row.note,
    }

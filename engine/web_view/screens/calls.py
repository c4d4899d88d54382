"""*Call*: the calls of the trace; and of one call every attempt, and its bill line by line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import StoreError
from callboard.tracestore import CallFilter, CallRow, PriceTable, Store

from ..answers import Refused, answer
from ..subject import Subject
from .events import envelope_seen

MOST_CALLS = 500
MOST_VERSIONS = 6


def call_filter(request: Request) -> CallFilter:
    """The calls that a page asks for.

    Raises:
        Refused: There is no such filter.
    """
    asked = request.query_params
    texts = ("provider", "model", "session_id", "request_id", "status", "error_class", "operation", "key")
    fields: dict[str, object] = {name: asked[name] for name in texts if asked.get(name)}
    for name in ("since", "until"):
        if asked.get(name):
            fields[name] = _number(asked[name])
    if ":" in asked.get("tag", ""):
        key, _, value = asked["tag"].partition(":")
        fields["tags"] = {key: value}
    try:
        return msgspec.convert(fields, CallFilter)
    except (msgspec.ValidationError, ValueError) as error:
        raise Refused(400, str(error)) from None


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise Refused(400, "a moment is a number of microseconds since the epoch")
    return int(text)


async def calls(subject: Subject, request: Request) -> Response:
    """The latest calls that match, each attempt by itself, the newest first."""
    where = call_filter(request)
    limit = min(_number(request.query_params.get("limit", "100")), MOST_CALLS)
    await subject.flush()
    async with subject.reading() as store:
        return answer([_without_raw(row) for row in await store.calls(where, limit)])


async def call(subject: Subject, request: Request) -> Response:
    """One call: its attempts with their bills under each price version that is known, and its events.

    Raises:
        Refused: There is no such call.
    """
    request_id = request.path_params["id"]
    await subject.flush()
    async with subject.reading() as store:
        attempts = sorted(await store.calls(CallFilter(request_id=request_id)), key=lambda row: row.attempt)
        if not attempts:
            raise Refused(404, "the trace has no such call")
        own = None if subject.engine is None else subject.engine.prices
        tables = await _tables(store, attempts, own)
        events = await store.events(request_id=request_id, limit=200)
    return answer(
        {
            "attempts": [_without_raw(row) for row in attempts],
            "bills": [[_bill(row, table) for table in tables] for row in attempts],
            "events": [envelope_seen(each) for each in events],
        }
    )


async def _tables(store: Store, attempts: Sequence[CallRow], own: PriceTable | None) -> list[PriceTable]:
    """The tables that have priced these attempts, and then the latest others that the trace knows."""
    costs = [cost for row in attempts for cost in (row.cost, row.at_call_time) if cost is not None]
    wanted = dict.fromkeys(cost.pricing_version for cost in costs if cost.pricing_version)
    wanted |= dict.fromkeys(run.version for run in await store.reprice_runs() if run.finished_us is not None)
    found = []
    for version in list(wanted)[:MOST_VERSIONS]:
        try:
            is_own = own is not None and own.version == version
            found.append(own if own is not None and is_own else await store.price_table(version))
        except StoreError:  # a table of another engine that never repriced here
            continue
    return found


def _bill(row: CallRow, table: PriceTable) -> dict[str, object]:
    """The bill of an attempt under a table."""
    if row.usage is None:
        known = {"version": table.version, "label": table.label}
        return {**known, "lines": (), "nano_usd": None, "reason": "no usage is known"}
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


def _without_raw(row: CallRow) -> CallRow:
    """The row without the provider's own usage object, which may be anything."""
    if row.usage is None or row.usage.raw is None:
        return row
    return msgspec.structs.replace(row, usage=msgspec.structs.replace(row.usage, raw=None))

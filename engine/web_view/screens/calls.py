"""*Call*: the calls of the trace; and of one call every attempt, and its bill line by line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import StoreError
from callboard.tracestore import CallFilter, CallRow, PriceTable, Store

from ..answers import Refused, answer
from ..sign_in import Visitor
from ..subject import Subject
from .events import envelope_seen, moment_of
from .rows import attempt_seen, message_seen, turns_seen

MOST_CALLS = 500
MOST_VERSIONS = 6
MOST_MESSAGES = 40
"""The number of messages of a prompt, the latest ones, that a call's page shows."""


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
            fields[name] = moment_of(asked[name])
    if ":" in asked.get("tag", ""):
        key, _, value = asked["tag"].partition(":")
        fields["tags"] = {key: value}
    try:
        return msgspec.convert(fields, CallFilter)
    except (msgspec.ValidationError, ValueError) as error:
        raise Refused(400, str(error)) from None


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "100")
    if not text.isdecimal() or len(text) > 9:
        raise Refused(400, "a limit is a number")
    return int(text)


async def calls(subject: Subject, request: Request) -> Response:
    """The latest calls that match, each attempt by itself, the newest first."""
    where = call_filter(request)
    limit = min(_limit(request), MOST_CALLS)
    await subject.flush()
    async with subject.reading() as store:
        return answer([attempt_seen(row) for row in await store.calls(where, limit)])


async def call(subject: Subject, request: Request) -> Response:
    """One call: its attempts with their bills under each price version that is known, and its events.

    Raises:
        Refused: There is no such call.
    """
    request_id = request.path_params["id"]
    visitor: Visitor = request.state.visitor
    await subject.flush()
    async with subject.reading() as store:
        attempts = sorted(await store.calls(CallFilter(request_id=request_id)), key=lambda row: row.attempt)
        if not attempts:
            raise Refused(404, "the trace has no such call")
        own = None if subject.engine is None else subject.engine.prices
        tables = await _tables(store, attempts, own)
        events = await store.events(request_id=request_id, limit=200)
        turns = await turns_seen(store, attempts[-1:])
        prompt = await _prompt(store, attempts[-1], "content" in visitor.scopes)
    return answer(
        {
            "attempts": [attempt_seen(row) for row in attempts],
            "bills": [[_bill(row, table) for table in tables] for row in attempts],
            "events": [envelope_seen(each) for each in events],
            "turn": turns[0] if turns else None,
            "prompt": prompt,
        }
    )


async def _prompt(store: Store, row: CallRow, shown: bool) -> dict[str, object] | None:
    """The messages that the call was sent, and its reply, as far as they were captured.

    Returns:
        None if the call has no session, if its content was not captured, or if its turn is not in the history.
    """
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

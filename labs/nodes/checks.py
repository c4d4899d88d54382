"""The checks after a round: PostgreSQL has each event of all files once, and conversations are complete."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from callboard.bus import StoreError
from callboard.tracestore import PostgresStore, TraceShipper

from .provider import CALL_NANO_USD, CUT_NANO_USD, OUTPUT_NANO_USD, TEXT, Served

_EVENTS = "SELECT r.run_id, e.seq, e.topic, e.request_id, e.data FROM events AS e JOIN runs AS r ON r.id = e.run"
_CALLS = "SELECT request_id, status, output_tokens, cost_nano FROM calls"
_ENDS = ("llm.call_completed", "llm.call_failed", "llm.call_cancelled")
_LOST = "process_lost"
Row = tuple[Any, ...]


async def ship(traces: Sequence[Path], dsn: str) -> None:
    """Ship the remaining events of each file."""
    for trace in traces:
        shipper = TraceShipper(trace, dsn)
        try:
            await shipper.ship()
        finally:
            await shipper.close()


async def failures_of(traces: Sequence[Path], dsn: str, folder: Path, served: Served, whole: bool) -> list[str]:
    """The faults of the shared store, compared with all files and with the provider's counts.

    Args:
    traces: The files of all nodes.
    dsn: The shared store.
    folder: A folder for temporary files.
    served: The provider's counts.
    whole: Whether each call ended by itself.
    """
    try:
        await ship(traces, dsn)
    except StoreError as error:
        return [f"shipping failed: {error}"]
    events, calls = _rows(traces, _EVENTS), _rows(traces, _CALLS)
    async with PostgresStore(dsn, path=folder / "pg") as shared:

        async def there(sql: str) -> list[Row]:
            return [tuple(row) for row in (await shared.sql(sql, limit=10_000_000, seconds=60)).rows]

        failures = _differences("events", [row[:4] for row in events], [row[:4] for row in await there(_EVENTS)])
        failures += _differences("calls", calls, await there(_CALLS))
        (total,) = await shared.costs(None, ())
    if total.cost_nano_usd != (due := sum(row[3] or 0 for row in calls)):
        failures.append(f"costs are {total.cost_nano_usd}, and calls come to {due}")
    return failures + _event_failures(events, calls) + _provider_failures(calls, served, whole)


def _rows(traces: Sequence[Path], sql: str) -> list[Row]:
    rows: list[Row] = []
    for trace in traces:
        with closing(sqlite3.connect(trace)) as file:
            rows += file.execute(sql).fetchall()
    return rows


def _differences(what: str, files: list[Row], shared: list[Row]) -> list[str]:
    missing, more = Counter(files) - Counter(shared), Counter(shared) - Counter(files)
    parts = [("missing", missing), ("too many", more)]
    return [f"{sum(rows.values())} {what} are {how}: {list(rows)[:3]}" for how, rows in parts if rows]


def _event_failures(events: list[Row], calls: list[Row]) -> list[str]:
    """The faults of the calls, compared with their events."""
    failures = []
    attempts = Counter(row[3] for row in events if row[2] == "llm.call_started")
    if attempts != Counter(row[0] for row in calls):
        failures.append(f"{sum(attempts.values())} attempts have {len(calls)} rows")
    ends = [(row[3], msgspec.json.decode(row[4])) for row in events if row[2] in _ENDS]
    if attempts != Counter(request for request, _ in ends):
        failures.append(f"{sum(attempts.values())} attempts have {len(ends)} ends")
    total = sum(row[3] or 0 for row in calls)
    due = sum(((end.get("usage") or {}).get("output_tokens") or 0) * OUTPUT_NANO_USD for _, end in ends)
    if total != due:
        failures.append(f"calls cost {total}, and by the usage of their events {due}")
    return failures


def _provider_failures(calls: list[Row], served: Served, whole: bool) -> list[str]:
    """The faults of the calls, compared with the provider's counts."""
    failures = []
    completed = [row for row in calls if row[1] == "completed"]
    cut = len(calls) - len(completed)
    if not len(completed) <= served.requests <= len(calls):
        failures.append(f"{len(calls)} calls, {len(completed)} completed, for {served.requests} requests")
    if len(completed) > served.whole or (whole and (cut or len(completed) != served.whole)):
        failures.append(f"{len(completed)} calls completed, {cut} did not, and {served.whole} replies were whole")
    if sum(row[3] for row in completed) != len(completed) * CALL_NANO_USD:
        failures.append(f"completed calls cost {[row[3] for row in completed]}, not {CALL_NANO_USD} each")
    if any((row[3] or 0) > CUT_NANO_USD for row in calls):
        failures.append(f"a call cost more than {CUT_NANO_USD}: {calls}")
    return failures


async def conversation_failures(
    dsn: str, folder: Path, session_id: str, asked: Mapping[int, str], replies: Mapping[int, str]
) -> list[str]:
    """The faults of a conversation in which each question has one reply.

    Args:
    dsn: The shared store.
    folder: A folder for temporary files.
    session_id: The session.
    asked: The questions, by position.
    replies: The replies, by position. If one is missing here, the stored reply may be incomplete.
    """
    async with PostgresStore(dsn, path=folder / "pg") as shared:
        saved = await shared.saved_session(session_id)
    messages = [] if saved is None else [(message.role, message.text) for message in saved.messages]
    failures = []
    user_texts = [text for role, text in messages if role == "user"]
    if user_texts != list(asked.values()):
        failures.append(f"asked {list(asked.values())}, kept {user_texts}")
    if [role for role, _ in messages] != ["user", "assistant"] * len(asked):
        failures.append(f"the conversation has a hole: {[role for role, _ in messages]}")
    for place, text in zip(asked, (text for role, text in messages if role == "assistant"), strict=False):
        if not TEXT.startswith(text) or replies.get(place, text) != text:
            failures.append(f"reply {place + 1} isn't what was said or read: {text!r}, not {replies.get(place)!r}")
    return failures

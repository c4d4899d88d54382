"""What must hold after a round: PostgreSQL has the events of all files once, and conversations are whole."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from bus import StoreError
from tracestore import PostgresStore, TraceShipper

_EVENTS = "SELECT r.run_id, e.seq, e.topic, e.request_id, e.data FROM events AS e JOIN runs AS r ON r.id = e.run"
_CALLS = """
    SELECT request_id, coalesce(input_tokens, 0), coalesce(output_tokens, 0), coalesce(cost_nano, 0) FROM calls
"""
_ENDS = ("llm.call_completed", "llm.call_failed", "llm.call_cancelled")
Row = tuple[Any, ...]


async def ship(traces: Sequence[Path], dsn: str) -> None:
    """Ship what is left in each file."""
    for trace in traces:
        shipper = TraceShipper(trace, dsn)
        try:
            await shipper.ship()
        finally:
            await shipper.close()


async def failures_of(traces: Sequence[Path], dsn: str, folder: Path) -> list[str]:
    """The ways in which the shared store differs from all files together."""
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
    attempts = Counter(row[3] for row in events if row[2] == "llm.call_started")
    if attempts != Counter(row[0] for row in calls):
        failures.append(f"{sum(attempts.values())} attempts have {len(calls)} rows")
    if (told := sum(row[3] for row in calls)) != (due := _recomputed(events)):
        failures.append(f"calls cost {told}, and their events say {due}")
    return failures


def _rows(traces: Sequence[Path], sql: str) -> list[Row]:
    rows: list[Row] = []
    for trace in traces:
        with closing(sqlite3.connect(trace)) as file:
            rows += file.execute(sql).fetchall()
    return rows


def _differences(what: str, files: list[Row], shared: list[Row]) -> list[str]:
    missing, more = Counter(files) - Counter(shared), Counter(shared) - Counter(files)
    told = [("missing", missing), ("too many", more)]
    return [f"{sum(rows.values())} {what} are {how}: {list(rows)[:3]}" for how, rows in told if rows]


def _recomputed(events: list[Row]) -> int:
    """What all calls cost, from the events alone."""
    ends = [msgspec.json.decode(row[4]) for row in events if row[2] in _ENDS]
    return sum((end.get("cost") or {}).get("nano_usd") or 0 for end in ends)


async def conversation_failures(dsn: str, folder: Path, session_id: str, asked: list[str], full: str) -> list[str]:
    """What is wrong with a conversation in which each question has one reply, and each reply begins as `full`."""
    async with PostgresStore(dsn, path=folder / "pg") as shared:
        saved = await shared.saved_session(session_id)
    said = [] if saved is None else [(message.role, message.text) for message in saved.messages]
    failures = []
    if [text for role, text in said if role == "user"] != asked:
        failures.append(f"asked {asked}, kept {[text for role, text in said if role == 'user']}")
    if [role for role, _ in said] != ["user", "assistant"] * len(asked):
        failures.append(f"the conversation has a hole: {[role for role, _ in said]}")
    failures += [
        f"a kept reply isn't what was said: {text!r}"
        for role, text in said
        if role == "assistant" and not full.startswith(text)
    ]
    return failures

"""The checks after a round: the shared store has each event of the file once, and the sums of the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from callboard.tracestore import PostgresStore, TraceStore

_EVENTS = """
    SELECT r.run_id, e.seq, e.topic, e.ts_us, e.session_id, e.request_id, e.data
      FROM events AS e JOIN runs AS r ON r.id = e.run ORDER BY r.run_id, e.seq
"""
_BODIES = "SELECT count(*), sum(length(body)) FROM content"
_USAGE = """
    SELECT count(*), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cost_nano), 0)
      FROM calls
"""


async def failures_of(trace: Path, dsn: str) -> list[str]:
    """The differences between a shared store and the file that was shipped to it."""
    failures = []
    with closing(sqlite3.connect(trace)) as file:
        events = file.execute(_EVENTS).fetchall()
        bodies = file.execute(_BODIES).fetchall()
        usage = file.execute(_USAGE).fetchall()
    async with TraceStore.open_readonly(trace) as local, PostgresStore(dsn, path=trace.with_name("pg")) as shared:

        async def there(sql: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in (await shared.sql(sql, limit=10_000_000, seconds=60)).rows]

        arrived = await there(_EVENTS)
        if len(set(arrived)) != len(arrived):
            failures.append(f"{len(arrived) - len(set(arrived))} events are doubled")
        if arrived != events:
            failures.append(f"{len(events)} events became {len(arrived)}")
        if await there(_USAGE) != usage:
            failures.append(f"sums of calls: {usage} became {await there(_USAGE)}")
        if await there(_BODIES) != bodies:
            failures.append(f"bodies: {bodies} became {await there(_BODIES)}")
        if (recomputed := _recomputed(events)) != usage[0]:
            failures.append(f"sums of calls: {usage} should be {recomputed}")
        failures += [
            f"costs by {by} differ"
            for by in ((), ("model",), ("day",), ("status",), ("session_id",))
            if _sorted(await local.costs(by=by)) != _sorted(await shared.costs(by=by))
        ]
        if _sorted(await local.sessions(None)) != _sorted(await shared.sessions(None)):
            failures.append("sessions differ")
        for session in await local.sessions(None):
            here, arrived_session = [await store.saved_session(session.session_id) for store in (local, shared)]
            if here != arrived_session:
                failures.append(f"the content of {session.session_id} differs")
    return failures


def _sorted(rows: Iterable[object]) -> list[str]:
    return sorted(map(str, rows))


def _recomputed(events: list[tuple[Any, ...]]) -> tuple[int, int, int, int]:
    """Calls, tokens and costs, computed only from the events."""
    calls = {row[5] for row in events if row[2] == "llm.call_started"}
    ends = [msgspec.json.decode(row[6]) for row in events if row[2] == "llm.call_completed"]
    usages = [end["usage"] for end in ends]
    return (
        len(calls),
        sum(usage["input_tokens"] for usage in usages),
        sum(usage["output_tokens"] for usage in usages),
        sum(end["cost"].get("nano_usd") or 0 for end in ends),
    )

"""What the trace store costs for each call, beside sqlite3 alone writing as many rows under the same indexes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from callboard.bus.bus import Bus
from callboard.bus.clock import SYSTEM_CLOCK
from callboard.bus.events.calls import LlmCallCompleted, LlmCallStarted
from callboard.bus.events.envelope import Envelope, Event
from callboard.bus.events.sessions import SessionMessageAppended, SessionTurnCompleted, SessionTurnStarted
from callboard.bus.values.messages import Candidate, Message, RoutingDecision
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage
from callboard.tracestore import TraceStore, WriterCore

from .table import Row, against, in_turns, run

_MODEL = "openai:gpt-5-mini"
_ROUTING = RoutingDecision(_MODEL, _MODEL, "openai", "id", (Candidate(_MODEL),))
_RAW = msgspec.Raw(
    b'{"prompt_tokens":812,"completion_tokens":64,"total_tokens":876,"prompt_tokens_details":'
    b'{"cached_tokens":512,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}'
)
_numbers = count()

Publication = tuple[Event, dict[str, str | int]]


def call() -> list[Publication]:
    """What the engine publishes for a turn of one call that isn't streamed; identities have their real length."""
    number = next(_numbers)
    stamp = f"{number:026}"
    turn = {"session_id": f"ses_{number // 20:026}", "turn_id": f"trn_{stamp}"}
    asked, answered = f"msg_{stamp}", f"msn_{stamp}"
    ids: dict[str, str | int] = {**turn, "request_id": f"req_{stamp}", "attempt": 1, "message_id": answered}
    started = LlmCallStarted(
        provider="openai",
        model=_MODEL,
        requested_model=_MODEL,
        streamed=False,
        routing=_ROUTING,
        estimated_input_tokens=830,
    )
    completed = LlmCallCompleted(
        provider="openai",
        model=_MODEL,
        served_model="gpt-5-mini-2025-08-07",
        stop_reason=StopReason.END_TURN,
        raw_stop_reason="stop",
        usage=TokenUsage(300, 64, cached_input_tokens=512, reasoning_tokens=0, raw=_RAW),
        cost=Cost(215_800, CostSource.COMPUTED, "0123456789ab"),
        latency_ms=2,
        first_token_ms=2,
        response_id="chatcmpl-0123456789abcdefghijklmnopqrs",
        provider_request_id="req_0123456789abcdef0123456789abcdef",
    )
    user = msgspec.structs.replace(Message.user("How is the weather in Paris?"), id=asked)
    reply = msgspec.structs.replace(Message.assistant("It is sunny."), id=answered)
    return [
        (SessionTurnStarted(model=_MODEL), {**turn}),
        (started, ids),
        (completed, ids),
        (SessionMessageAppended(position=0, message=user), {**turn, "message_id": asked}),
        (SessionMessageAppended(position=1, message=reply), {**turn, "message_id": answered}),
        (SessionTurnCompleted(status="completed", calls=1, cost_nano_usd=215_800), {**turn}),
    ]


def envelopes_of(published: Iterable[Publication], seqs: Iterator[int]) -> list[Envelope]:
    """The same in envelopes, as the bus makes them."""
    now_us, now_ns = SYSTEM_CLOCK.now_us(), SYSTEM_CLOCK.monotonic_ns()
    return [
        Envelope(next(seqs), "run_bench", now_us, now_ns, event, **ids)  # type: ignore[arg-type]
        for event, ids in published
    ]


def stored_rows(path: Path, calls: int) -> list[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """Rows of events and of calls as they stand in a trace file, in batches of so many calls."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        events = database.execute("SELECT * FROM events ORDER BY id").fetchall()
        rows = database.execute("SELECT * FROM calls ORDER BY id").fetchall()
    each = len(events) // len(rows) * calls
    return [(events[index * each :][:each], rows[index * calls :][:calls]) for index in range(len(rows) // calls)]


def bare_copy(path: Path, like: Path) -> sqlite3.Connection:
    """A database with the tables and indexes of a trace file, and its settings, for sqlite3 in this thread."""
    with contextlib.closing(sqlite3.connect(like)) as model:
        schema = [sql for (sql,) in model.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    bare = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 4000"):
        bare.execute(f"PRAGMA {pragma}")
    for sql in schema:
        bare.execute(sql)
    return bare


async def _of_size(folder: Path, calls: int, batches: int, repetitions: int) -> list[Row]:
    """The three beside each other, for batches of so many calls."""
    rounds = batches * (repetitions + 1)
    seqs = count(1)
    published = [[one for _ in range(calls) for one in call()] for _ in range(rounds)]
    written = [envelopes_of(batch, seqs) for batch in published]
    async with TraceStore(folder / "rows.db") as scratch:
        for batch in written:
            await scratch.write(batch)
    rows = stored_rows(scratch.path, calls)
    bare = bare_copy(folder / "bare.db", scratch.path)

    async def floor() -> None:
        for _ in range(batches):
            events, attempts = rows.pop()
            bare.execute("BEGIN IMMEDIATE")
            for table, values in (("events", events), ("calls", attempts)):
                bare.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
            bare.execute("COMMIT")

    async with TraceStore(folder / "store.db") as store, TraceStore(folder / "writer.db") as behind_writer:
        bus = Bus()
        core = WriterCore.for_bus(behind_writer, bus)
        pump = asyncio.create_task(core.run())

        async def alone() -> None:
            for _ in range(batches):
                await store.write(written.pop())

        async def whole() -> None:
            for _ in range(batches):
                for event, ids in published.pop():
                    bus.publish(event, **ids)  # type: ignore[arg-type]
                await core.flush()

        spent = await in_turns({"floor": floor, "store": alone, "writer": whole}, repetitions=repetitions)
        bus.close()
        await pump
    bare.close()
    each = {name: seconds / batches / calls for name, seconds in spent.items()}
    return [
        against(f"{calls} calls a commit: the store alone, per call", each["store"], each["floor"]),
        against(f"{calls} calls a commit: bus, writer and store, per call", each["writer"], each["floor"]),
    ]


async def _rows(quick: bool) -> list[Row]:
    found: list[Row] = []
    for calls in (10, 40):
        with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
            batches, repetitions = (3, 1) if quick else (400 // calls, 9)
            found += await _of_size(Path(folder), calls, batches, repetitions)
    return found


def rows(quick: bool) -> list[Row]:
    from .store_money import CALLS, money_rows  # which uses what is above

    return [*run(_rows(quick)), *run(money_rows(CALLS // 50 if quick else CALLS))]

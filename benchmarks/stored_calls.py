"""The events of a call as the engine publishes them, and trace files with them, for the benchmarks of stores."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from callboard.bus.clock import SYSTEM_CLOCK
from callboard.bus.events import Envelope, Event
from callboard.bus.events.calls import LlmCallCompleted, LlmCallStarted
from callboard.bus.events.sessions import SessionMessageAppended, SessionTurnCompleted, SessionTurnStarted
from callboard.bus.values.messages import Candidate, Message, RoutingDecision
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage

_MODEL = "openai:gpt-5-mini"
_ROUTING = RoutingDecision(_MODEL, _MODEL, "openai", "id", (Candidate(_MODEL),))
_RAW = msgspec.Raw(
    b'{"prompt_tokens":812,"completion_tokens":64,"total_tokens":876,"prompt_tokens_details":'
    b'{"cached_tokens":512,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}'
)
_numbers = count()

Publication = tuple[Event, dict[str, str | int]]


def call() -> list[Publication]:
    """The events of a turn with one call without streaming. Ids have their real lengths."""
    number = next(_numbers)
    stamp = f"{number:026}"
    turn = {"session_id": f"ses_{number // 20:026}", "turn_id": f"trn_{stamp}"}
    question_id, answered = f"msg_{stamp}", f"msn_{stamp}"
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
    user = msgspec.structs.replace(Message.user("How is the weather in Paris?"), id=question_id)
    reply = msgspec.structs.replace(Message.assistant("It is sunny."), id=answered)
    return [
        (SessionTurnStarted(model=_MODEL), {**turn}),
        (started, ids),
        (completed, ids),
        (SessionMessageAppended(position=0, message=user), {**turn, "message_id": question_id}),
        (SessionMessageAppended(position=1, message=reply), {**turn, "message_id": answered}),
        (SessionTurnCompleted(status="completed", calls=1, cost_nano_usd=215_800), {**turn}),
    ]


def envelopes_of(published: Iterable[Publication], seqs: Iterator[int]) -> list[Envelope]:
    """The events in envelopes, as the bus creates them."""
    now_us, now_ns = SYSTEM_CLOCK.now_us(), SYSTEM_CLOCK.monotonic_ns()
    return [
        Envelope(next(seqs), "run_bench", now_us, now_ns, event, **ids)  # type: ignore[arg-type]
        for event, ids in published
    ]


def stored_rows(path: Path, calls: int) -> list[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """The rows of events and calls in a trace file, in batches of this number of calls."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        events = database.execute("SELECT * FROM events ORDER BY id").fetchall()
        rows = database.execute("SELECT * FROM calls ORDER BY id").fetchall()
    each = len(events) // len(rows) * calls
    return [(events[index * each :][:each], rows[index * calls :][:calls]) for index in range(len(rows) // calls)]


def bare_copy(path: Path, like: Path) -> sqlite3.Connection:
    """A database with the tables, indexes and settings of a trace file, for sqlite3 in this thread."""
    with contextlib.closing(sqlite3.connect(like)) as model:
        schema = [sql for (sql,) in model.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    bare = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 4000"):
        bare.execute(f"PRAGMA {pragma}")
    for sql in schema:
        bare.execute(sql)
    return bare

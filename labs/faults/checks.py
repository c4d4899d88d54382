"""The invariants after a round. Each check returns the violations as texts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from callboard.adapters import AdapterError, CanonicalRequest, Message, ToolDefinition, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus import (
    CallboardError,
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    SessionTurnCompleted,
)
from callboard.bus.streams.events import StepFinish, StreamEvent, TurnComplete, TurnEvent
from callboard.engine import AdapterEntry, Session
from callboard.engine.routing.candidates import may_fall_back
from callboard.tracestore import TraceStore
from tests.support.invariants import check_stream
from tests.support.wire_history import history_faults

from .plan import STEADY, TurnPlan

Attempt = tuple[str | None, int | None]


def attempts(envelopes: Iterable[Envelope]) -> set[Attempt]:
    """The (request_id, attempt) of all attempts that were started."""
    return {(e.request_id, e.attempt) for e in envelopes if isinstance(e.data, LlmCallStarted)}


def on_the_bus(envelopes: Sequence[Envelope]) -> list[str]:
    """Check that each attempt and each turn has one end, that attempts are in order and the last one is final, and
    that seq has no gap.
    """
    wrong: list[str] = []
    is_open: dict[Attempt, bool] = {}
    by_call: dict[str, list[tuple[int, bool]]] = {}
    for envelope in envelopes:
        key = (envelope.request_id, envelope.attempt)
        match envelope.data:
            case LlmCallStarted():
                if key in is_open:
                    wrong.append(f"{key} starts twice")
                is_open[key] = True
            case LlmCallCompleted() | LlmCallFailed():
                if not is_open.get(key):
                    wrong.append(f"{key} ends and was not open")
                is_open[key] = False
                again = isinstance(envelope.data, LlmCallFailed) and envelope.data.will_retry
                by_call.setdefault(str(key[0]), []).append((key[1] or 0, again))
            case _:
                pass
    wrong += [f"{key} has no end on the bus" for key, still in is_open.items() if still]
    for call, ends in by_call.items():
        if ends != [(at, at < len(ends)) for at in range(1, len(ends) + 1)]:
            wrong.append(f"call {call}: its attempts end as {ends}")
    turns = Counter(e.turn_id for e in envelopes if isinstance(e.data, SessionTurnCompleted))
    wrong += [f"turn {turn} completes {times} times" for turn, times in turns.items() if times != 1]
    started = {e.turn_id for e in envelopes if e.topic == "session.turn_started"}
    wrong += [f"turn {turn} starts and does not end" for turn in started - set(turns)]
    seqs = [envelope.seq for envelope in envelopes]
    if seqs != list(range(1, len(seqs) + 1)):
        wrong.append("a lossless reader has a gap, or another order")
    return wrong


async def in_the_store(path: Path, envelopes: Sequence[Envelope], asked: Mapping[str, int]) -> list[str]:
    """Each event once, each attempt one row with its end.

    Args:
        path: The store's file.
        envelopes: The events of the bus.
        asked: The number of requests that the server saw of each session.

    Returns:
        What is wrong.
    """
    wrong: list[str] = []
    async with TraceStore.open_readonly(path) as store:
        rows = await store.calls(limit=None)
        stored = Counter([envelope.seq for envelope in await store.events(limit=None)])
    keys = Counter((row.request_id, row.attempt) for row in rows)
    if set(keys) != attempts(envelopes):
        wrong.append(f"rows and attempts differ: {set(keys) ^ attempts(envelopes)}")
    wrong += [f"{key} has more than one row" for key, times in keys.items() if times > 1]
    wrong += [
        f"{(row.request_id, row.attempt)} has no end in the store" for row in rows if row.status == "started"
    ]
    lost = {envelope.seq for envelope in envelopes} - set(stored)
    twice = [seq for seq, times in stored.items() if times > 1]
    if lost or twice:
        wrong.append(f"events lost: {sorted(lost)}, events twice: {twice}")
    stored_ids = {row.session_id for row in rows}
    wrong += [f"session {name}: {n} requests and no row" for name, n in asked.items() if name not in stored_ids]
    return wrong


def of_stream(
    stream_id: str, closed: bool, whole: Sequence[TurnEvent], readings: Sequence[Sequence[TurnEvent]]
) -> list[str]:
    """Check that the stream has ended, that each reader got the same events from the beginning, and that each
    message satisfies the stream invariants.
    """
    wrong: list[str] = []
    if not closed or not whole or not isinstance(whole[-1], TurnComplete):
        wrong.append(f"stream {stream_id} has no end: {whole[-2:]}")
    wrong += [
        f"a reader of {stream_id} has read something else: {reading} of {whole}"
        for reading in readings
        if list(reading) != list(whole[: len(reading)])
    ]
    messages: dict[str, list[StreamEvent]] = {}
    for event in whole:
        message_id = getattr(event, "message_id", None)
        if message_id is not None and not isinstance(event, StepFinish):
            messages.setdefault(message_id, []).append(event)  # type: ignore[arg-type]
    for events in messages.values():
        try:
            check_stream(events)
        except Exception as error:
            wrong.append(f"stream {stream_id} breaks an invariant: {error!r}\n{events}")
    return wrong


async def of_histories(
    sessions: Sequence[Session], adapters: Iterable[AdapterEntry], tools: tuple[ToolDefinition, ...]
) -> list[str]:
    """Check that no session has a turn in progress, and that each provider accepts its history with one more
    question.
    """
    wrong: list[str] = []
    for session, entry in itertools.product(sessions, adapters):
        if session._state.waiting or session._state.running is not None:
            wrong.append(f"session {session.id}: waiting={session._state.waiting} after all turns")
        adapter = create_adapter(entry.type, entry.config, name=entry.name)
        assert isinstance(adapter, HttpAdapter)
        request = CanonicalRequest(
            request_id="check",
            messages=(*session.messages, Message.user("and now?")),
            model=f"{entry.name}:m",
            max_output_tokens=100,
            tools=tools,
        )
        wire = adapter.write_request(request, stream=False)
        faults = history_faults(wire.path, msgspec.json.decode(wire.body))
        wrong += [f"{entry.name} would refuse the history of session {session.id}: {fault}" for fault in faults]
        await adapter.close()
    return wrong


def of_fallback(turn: TurnPlan, error: CallboardError) -> list[str]:
    """Check that a turn with a working fallback failed only if content was already delivered, or if no fallback
    could help.
    """
    if turn.fallback != (f"{STEADY}:m",) or turn.timeout_seconds is not None:
        return []
    if turn.kind in ("leave", "cancel", "kill"):  # after leaving a stream, the fallback's reply is not needed
        return []
    if isinstance(error, AdapterError) and not error.content and may_fall_back(error):
        return [f"{type(error).__name__} though {STEADY} would have answered: {error}"]
    return []


# -- nothing may be left


async def nothing_left(run: Callable[[], Awaitable[None]]) -> list[str]:
    """Run a function, and return the tasks, files and threads that are left afterwards."""
    files, threads = _files(), _threads()
    await run()
    # a socket's transport closes in the next iteration of the event loop, a thread soon after
    await asyncio.sleep(0.05)
    still = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    gc.collect()
    wrong = [f"a task is left: {task}" for task in still]
    wrong += [f"a file is left open: {name}" for name in sorted(_files() - files)]
    return wrong + [f"a thread is left: {name}" for name in sorted(_threads() - threads)]


def _files() -> set[str]:
    """Open files, except the one that uvloop keeps open until its loop is closed."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return {name for name in found if not name.endswith(" /dev/null")}


def _threads() -> set[str]:
    """Running threads, except the workers of anyio and of tools, which end by themselves, and the store's exit
    guard.
    """
    return {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if not thread.name.startswith(("AnyIO worker", "callboard-sqlite-reaper", "callboard tool"))
    }


def stacks() -> str:
    """The stacks of all tasks, for a step that hangs."""
    lines = []
    for task in asyncio.all_tasks():
        frames = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
        lines.append(f"  {task.get_name()}: {' > '.join(frames)}")
    return "\n".join(lines)

"""A trace of a day with faults: every kind of call row, with texts that are difficult to show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anyio
import msgspec

from callboard.bus.events import Envelope
from callboard.bus.events.calls import (
    JobCreated,
    JobFailed,
    LlmCallFailed,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from callboard.bus.events.operation import ActorCrashed, ProviderAvailabilityChanged, StoreStateChanged
from callboard.bus.events.sessions import (
    SessionConfigured,
    SessionCreated,
    SessionMessageAppended,
    SessionModelChanged,
    SessionRenamed,
    SessionTurnCompleted,
    SessionTurnStarted,
)
from callboard.bus.values.content import ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, MessageMetadata, Role, SessionSetup
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage, UsageSource
from callboard.tracestore import Capture, PriceTable, Store
from tests.tracestore.trace_making import DAY_US, T0, Maker

HOSTILE = (
    "a\x1b[2Jb\x1b]0;owned\x07c\x9b31md\x85e\x7ff \u202egpj.exe\u2066x\u2069 g\u2028h\ufeff\U000e0041 "
    "[bold red]i[/] <script>alert('j')</script> & \"k\", =cmd|'l'!A1\r\nm\tn\x00o {p} %s"
)
"""Escape sequences, hidden characters, line breaks, and markup of rich, HTML, CSV and format strings."""

SESSIONS = ("ses_hostile", "ses_captured", f"ses_{HOSTILE}", "")
LONG = "long-name-" * 30
HUGE = 2**62
MODELS = (
    "openai:gpt-5",
    "anthropic:claude-sonnet-4-5",
    "local-chat:smollm2",
    f"evil:{HOSTILE}",
    f"long:{LONG}",
    ":",
)


def make_faulty_day(store: Store, prices: Path) -> None:
    """Write the day's events to a store."""
    anyio.run(_make, store, prices)


async def _make(store: Store, prices: Path) -> None:
    first, second = PriceTable.all_from_yaml(prices)
    day, capture = Maker("run_day"), Capture()
    async with store:
        await store.write([capture.apply(envelope) for envelope in _day(day)])
        await store.close_lost_runs()
        for table in (first, second):
            await store.reprice(table)
        await store.undo_reprice()
        await store.forget_content(T0 + 10 * DAY_US)
        await store.write([capture.apply(envelope) for envelope in _after(Maker("run_after"))])


def _day(make: Maker) -> Iterator[Envelope]:
    yield from _calls(make)
    yield from _other_operations(make)
    yield from _events(make)
    yield from _conversation(make, "ses_hostile")


def _after(make: Maker) -> Iterator[Envelope]:
    """Events of a later run, which is lost. This run comes after the repricings and after content was deleted."""
    later = T0 + 20 * DAY_US
    yield make(SessionCreated(model=MODELS[0]), session_id="ses_captured", ts_us=later)
    for envelope in _conversation(make, "ses_captured"):
        yield msgspec.structs.replace(envelope, ts_us=later)
    yield make.started("req_open", MODELS[1], ts_us=later)


def _calls(make: Maker) -> Iterator[Envelope]:
    """Calls with every kind of end, model, usage and cost."""
    for number, (usage, cost) in enumerate(_amounts()):
        model, request = MODELS[number % len(MODELS)], f"req_{number}"
        ids = {"session_id": SESSIONS[number % len(SESSIONS)], "tags": {"team": HOSTILE, HOSTILE: "", "n": "1"}}
        yield make.started(request, model, **ids)
        yield make.completed(request, model, usage=usage, cost=cost, served_model=model, **ids)
    yield make.started("req_retried", MODELS[0])
    yield make.failed("req_retried", MODELS[0], will_retry=True)
    yield make.started("req_retried", MODELS[0], attempt=2)
    yield make.failed("req_retried", MODELS[0], attempt=2, usage=TokenUsage(9, 1, source=UsageSource.PARTIAL))
    for error_class in ("cancelled", "timeout", "rate_limit", "stream_error", HOSTILE, ""):
        request = f"req_{error_class}"
        yield make.started(request, MODELS[3])
        yield make(_failure(error_class), request_id=request, attempt=1)
    for name, moment in (("before", -1), ("year_10000", 253_402_300_800_000_000), ("never", 2**63 - 1)):
        yield make.started(f"req_{name}", MODELS[0], ts_us=moment)
        yield make.completed(f"req_{name}", MODELS[0], ts_us=moment)
    yield make.started("req_lost", MODELS[0])


def _amounts() -> Iterator[tuple[TokenUsage, Cost | None]]:
    raw = msgspec.Raw(b'{"prompt_tokens": 3, "details": {"cached": [1, {"x": "\\u202e\\ud800"}]}, "note": "<b>"}')
    unpriced = Cost(None, CostSource.UNPRICED, None, f"no price for {HOSTILE}")
    yield TokenUsage(100, 10), None
    yield TokenUsage(100, 10, 50, 20, 5, 3, raw=raw, details={"web_search": 2, "audio_input": 7}), None
    yield TokenUsage(3, 4, reported_cost_nano_usd=7, raw=raw), Cost(7, CostSource.PROVIDER, None, None, 9)
    yield TokenUsage(3, 4, source=UsageSource.ESTIMATED, service_tier=HOSTILE), unpriced
    yield TokenUsage(HUGE, HUGE), Cost(HUGE, CostSource.COMPUTED, "000000000000")
    yield TokenUsage(0, 0), Cost(0, CostSource.COMPUTED, "000000000000")
    yield TokenUsage(1, 1), Cost(-5, CostSource.PROVIDER)


def _failure(error_class: str) -> LlmCallFailed:
    return LlmCallFailed(
        provider=MODELS[3].partition(":")[0],
        model=MODELS[3],
        error_class=error_class,
        error_type=HOSTILE,
        message=f"{HOSTILE} {'x' * 1900}",
        will_retry=False,
        retry_count=0,
        provider_status=-1,
        provider_code=HOSTILE,
        provider_request_id=HOSTILE,
        retry_after_seconds=1e300,
        latency_ms=10**11,
    )


def _other_operations(make: Maker) -> Iterator[Envelope]:
    for operation in ("embeddings", "image", "video_create", "video", HOSTILE):
        request, usage = f"req_{operation}", TokenUsage(5, 0, details={"video_second:720p": 8, HOSTILE: 1})
        yield make.started(request, MODELS[0], operation=operation)
        yield make.completed(request, MODELS[0], usage=usage)
    job = {"job_id": f"job_{HOSTILE}", "kind": "video", "provider": "openai", "model": MODELS[3]}
    yield make(JobCreated(status=HOSTILE, **job))
    yield make(JobFailed(status="failed", error_type=HOSTILE, message=HOSTILE, **job))


def _events(make: Maker) -> Iterator[Envelope]:
    for session in SESSIONS:
        yield make(SessionCreated(model=MODELS[3], tags={"team": HOSTILE}, name=HOSTILE), session_id=session)
        yield make(SessionRenamed(name=f"renamed {HOSTILE}"), session_id=session)
    for before, after in pairwise(MODELS):
        yield make(SessionModelChanged(previous=before, current=after), session_id=SESSIONS[0])
    for status in ("completed", "failed", "cancelled", "awaiting_tools", "max_tool_rounds", HOSTILE):
        ids = {"session_id": SESSIONS[0], "turn_id": f"trn_{status}"}
        yield make(SessionTurnStarted(model=MODELS[3]), **ids)
        yield make(ToolStarted(tool_use_id=HOSTILE, tool_name=HOSTILE), **ids)
        yield make(ToolProgress(tool_use_id=HOSTILE, tool_name=HOSTILE, message=HOSTILE, fraction=0.5), **ids)
        yield make(ToolFinished(tool_use_id=HOSTILE, tool_name=HOSTILE, is_error=True, latency_ms=HUGE), **ids)
        yield make(SessionTurnCompleted(status=status, calls=HUGE, cost_nano_usd=-1, error=HOSTILE), **ids)
    yield make(ActorCrashed(actor=HOSTILE, error=HOSTILE, failures=3))
    yield make(
        ProviderAvailabilityChanged(
            provider=HOSTILE, model=MODELS[3], previous="available", current="unavailable", reason=HOSTILE
        )
    )
    yield make(StoreStateChanged(previous="ok", current="dropping", reason=HOSTILE, lost=HUGE))


def _conversation(make: Maker, session: str) -> Iterator[Envelope]:
    """A conversation whose content is captured."""
    setup = SessionSetup(model=MODELS[0], system_prompt=HOSTILE)
    yield make(SessionConfigured(history=0, begins=True, setup=setup), session_id=session)
    metadata = MessageMetadata(
        provider="evil",
        model=MODELS[3],
        usage=TokenUsage(1, 2),
        cost=Cost(3, CostSource.COMPUTED),
        stop_reason=StopReason.TOOL_USE,
        raw_stop_reason=HOSTILE,
    )
    tool_use = ToolUseBlock("tu_1", f"tool_{HOSTILE}", {"path": HOSTILE, "half": "\ud800"})
    said = (
        Message(Role.USER, (TextBlock(f"{HOSTILE} \ud800"), ImageBlock(data=b"\x89PNG", media_type=HOSTILE))),
        Message(Role.ASSISTANT, (TextBlock(HOSTILE), tool_use), metadata=metadata),
        Message(Role.TOOL, (ToolResultBlock("tu_1", HOSTILE, is_error=True),)),
    )
    for position, message in enumerate(said):
        yield make(SessionMessageAppended(position=position, message=message), session_id=session)

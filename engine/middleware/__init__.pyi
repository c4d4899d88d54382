# Written by scripts/make_stubs.py.
from .chain import AnyEventFilter, Around, AsyncEventFilter, EventFilter, GuardReport, Judged, Middleware, MiddlewareLike, Next, Steps
from .guardrails import Guard, GuardedKind, Guardrail, Held, Stop, Window
from .ready_made import Cache, LogCalls, MemoryReplies, ReplyStore, TryModels
from callboard.engine.calls.outcome import CallEnd, CallInfo, CallOutcome

__all__ = [
    "AnyEventFilter",
    "Around",
    "AsyncEventFilter",
    "Cache",
    "CallEnd",
    "CallInfo",
    "CallOutcome",
    "EventFilter",
    "Guard",
    "GuardReport",
    "GuardedKind",
    "Guardrail",
    "Held",
    "Judged",
    "LogCalls",
    "MemoryReplies",
    "Middleware",
    "MiddlewareLike",
    "Next",
    "ReplyStore",
    "Steps",
    "Stop",
    "TryModels",
    "Window",
]

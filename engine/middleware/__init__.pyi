# Written by scripts/make_stubs.py.
from .caching import Cache, MemoryReplies, ReplyStore
from .contract import AnyEventFilter, Around, AsyncEventFilter, EventFilter, GuardReport, Judged, Middleware, MiddlewareLike, Next, Steps
from .guardrails.guardrail import Guard, Guardrail
from .guardrails.held_reply import GuardedKind, Held, Stop
from .guardrails.windows import Window
from .logging import LogCalls
from .other_models import TryModels
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

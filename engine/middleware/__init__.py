"""Middleware, which stands around every call (`Engine(middleware=[...])`), and three that are often wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.bus._lazy_names import later

from ..calls.outcome import CallEnd, CallInfo, CallOutcome
from .contract import (
    AnyEventFilter,
    Around,
    AsyncEventFilter,
    EventFilter,
    GuardReport,
    Judged,
    Middleware,
    MiddlewareLike,
    Next,
    Steps,
)

if TYPE_CHECKING:
    from .caching import Cache, MemoryReplies, ReplyStore
    from .guardrails.guardrail import Guard, Guardrail
    from .guardrails.held_reply import GuardedKind, Held, Stop
    from .guardrails.windows import Window
    from .logging import LogCalls
    from .other_models import TryModels
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".caching": ("Cache", "MemoryReplies", "ReplyStore"),
            ".guardrails.guardrail": ("Guard", "Guardrail"),
            ".guardrails.held_reply": ("GuardedKind", "Held", "Stop"),
            ".guardrails.windows": ("Window",),
            ".logging": ("LogCalls",),
            ".other_models": ("TryModels",),
        },
    )

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

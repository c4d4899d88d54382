"""Middleware, which stands around every call (`Engine(middleware=[...])`), and three that are often wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus._lazy_names import later

from ..calls.outcome import CallEnd, CallInfo, CallOutcome
from .contract import Around, EventFilter, Middleware, MiddlewareLike, Next, Steps

if TYPE_CHECKING:
    from .caching import Cache, MemoryReplies, ReplyStore
    from .logging import LogCalls
    from .other_models import TryModels
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".caching": ("Cache", "MemoryReplies", "ReplyStore"),
            ".logging": ("LogCalls",),
            ".other_models": ("TryModels",),
        },
    )

__all__ = [
    "Around",
    "Cache",
    "CallEnd",
    "CallInfo",
    "CallOutcome",
    "EventFilter",
    "LogCalls",
    "MemoryReplies",
    "Middleware",
    "MiddlewareLike",
    "Next",
    "ReplyStore",
    "Steps",
    "TryModels",
]

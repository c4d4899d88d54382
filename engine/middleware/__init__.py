"""What stands around every call, `Engine(middleware=[...])`, and five of the kind that are often wanted."""

from ..call import CallOutcome, EventFilter
from ..call_events import CallEnd, CallInfo
from .budget import Budget, BudgetExceededError
from .caching import Cache, MemoryReplies, ReplyStore
from .chain import Around, Middleware, MiddlewareLike, Next, Steps
from .logging import LogCalls
from .other_models import TryModels
from .rate_limit import RateLimit

__all__ = [
    "Around",
    "Budget",
    "BudgetExceededError",
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
    "RateLimit",
    "ReplyStore",
    "Steps",
    "TryModels",
]

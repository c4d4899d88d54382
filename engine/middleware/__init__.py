"""Middleware, which stands around every call (`Engine(middleware=[...])`), and three that are often wanted."""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".caching": "Cache MemoryReplies ReplyStore",
        ".contract": (
            "AnyEventFilter Around AsyncEventFilter EventFilter GuardReport Judged Middleware MiddlewareLike "
            "Next Steps"
        ),
        ".guardrails.guardrail": "Guard Guardrail",
        ".guardrails.held_reply": "GuardedKind Held Stop",
        ".guardrails.windows": "Window",
        ".logging": "LogCalls",
        ".other_models": "TryModels",
        "callboard.engine.calls.outcome": "CallEnd CallInfo CallOutcome",
    },
)

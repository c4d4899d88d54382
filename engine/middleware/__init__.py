"""Middleware around every call (`Engine(middleware=[...])`), and three ready-made ones."""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".chain": (
            "AnyEventFilter Around AsyncEventFilter EventFilter GuardReport Judged Middleware MiddlewareLike "
            "Next Steps"
        ),
        ".guardrails": "Guard GuardedKind Guardrail Held Stop Window",
        ".ready_made": "Cache LogCalls MemoryReplies ReplyStore TryModels",
        "callboard.engine.calls.outcome": "CallEnd CallInfo CallOutcome",
    },
)

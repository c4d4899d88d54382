"""Each stop reason of each wire: the table of `test_objects_over_wires`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from callboard.bus.errors import AdapterError, OverloadedError, ServerError, StreamError
from callboard.bus.values.usage import StopReason

END, TOOLS, PAUSE = StopReason.END_TURN, StopReason.TOOL_USE, StopReason.PAUSE_TURN
LIMIT, STOP, FILTER = StopReason.MAX_TOKENS, StopReason.STOP_SEQUENCE, StopReason.CONTENT_FILTER
REFUSAL, OTHER = StopReason.REFUSAL, StopReason.PROVIDER_SPECIFIC

Ending: TypeAlias = StopReason | type[AdapterError]
"""A stop reason, or the error that the end of the reply means."""

NOTHING = ""
"""The reply ends without a reason."""

ENDINGS: Mapping[str, Mapping[str, Ending]] = {
    "anthropic": {
        "end_turn": END,
        "tool_use": TOOLS,
        "pause_turn": PAUSE,
        "max_tokens": LIMIT,
        "model_context_window_exceeded": LIMIT,
        "stop_sequence": STOP,
        "refusal": REFUSAL,
        "stop": END,
        "length": LIMIT,
        "tool_calls": TOOLS,
        "content_filter": FILTER,
        "compaction": OTHER,
        "sensitive": OTHER,
        "error": ServerError,
        "abort": ServerError,
        "unheard_of": OTHER,
        NOTHING: OTHER,
    },
    "openai": {
        "completed": END,
        "max_output_tokens": LIMIT,
        "content_filter": FILTER,
        "steered": OTHER,
        "complete": OTHER,
        "cancelled": ServerError,
        "failed": ServerError,
        "unheard_of": OTHER,
        NOTHING: OTHER,
    },
    "openai_compatible": {
        "stop": END,
        "tool_calls": END,
        "function_call": END,
        "end_turn": END,
        "eos_token": END,
        "length": LIMIT,
        "model_length": LIMIT,
        "model_context_window_exceeded": LIMIT,
        "stop_sequence": STOP,
        "content_filter": FILTER,
        "sensitive": FILTER,
        "refusal": REFUSAL,
        "error": ServerError,
        "abort": ServerError,
        "network_error": ServerError,
        "insufficient_system_resource": OverloadedError,
        "function_call_filter: MALFORMED_FUNCTION_CALL": OTHER,
        "unheard_of": OTHER,
        NOTHING: OTHER,
    },
    "gemini": {
        "STOP": END,
        "MAX_TOKENS": LIMIT,
        "SAFETY": FILTER,
        "RECITATION": FILTER,
        "PROHIBITED_CONTENT": FILTER,
        "MODEL_ARMOR": FILTER,
        **dict.fromkeys(("BLOCKLIST", "SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT"), FILTER),
        **dict.fromkeys(("IMAGE_RECITATION", "IMAGE_OTHER"), FILTER),
        **dict.fromkeys(("LANGUAGE", "NO_IMAGE", "TOO_MANY_TOOL_CALLS", "CONTINUATION"), OTHER),
        "MISSING_THOUGHT_SIGNATURE": OTHER,
        "INVENTED_TOMORROW": OTHER,
        "MALFORMED_FUNCTION_CALL": OTHER,
        "UNEXPECTED_TOOL_CALL": OTHER,
        "OTHER": OTHER,
        NOTHING: OTHER,
    },
    "interactions": {
        "completed": END,
        "requires_action": TOOLS,
        "incomplete": LIMIT,
        "requires_continuation": PAUSE,
        "failed": ServerError,
        "cancelled": ServerError,
        "budget_exceeded": OTHER,
        "unheard_of": OTHER,
    },
    "ollama": {
        "stop": END,
        "length": LIMIT,
        "error": ServerError,
        "load": OTHER,
        "unload": OTHER,
        "unheard_of": OTHER,
        NOTHING: END,  # older servers give no reason, but all servers mark the end
    },
    "tgi": {
        "eos_token": END,
        "length": LIMIT,
        "stop_sequence": STOP,
        "error": ServerError,
        "unheard_of": OTHER,
        NOTHING: OTHER,
    },
}
"""The endings by the wire's name and its word. Regular ends are `END` for each word. With calls they become
`TOOLS`.
"""

STREAMED: Mapping[tuple[str, str], Ending] = {
    ("openai", NOTHING): END, ("openai_compatible", NOTHING): StreamError, ("gemini", NOTHING): StreamError,
}  # fmt: skip
"""The differences between a stream and a plain reply. A plain JSON body is complete, but a stream needs a mark of
its end.
"""


def ending(wire: str, word: str, *, streamed: bool, calls: int) -> Ending:
    """The meaning of that word on the wire."""
    meant = ENDINGS[wire][word]
    if streamed:
        meant = STREAMED.get((wire, word), meant)
    has_a_word_for_calls = wire == "anthropic"
    return TOOLS if calls and meant is END and not has_a_word_for_calls else meant

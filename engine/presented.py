"""Results as plain values and as Markdown: for a web framework's answer, a log, or a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from callboard.adapters import CallWarning, Message, StopReason, TokenUsage, ToolUseBlock
from callboard.bus import Cost, TurnStatus
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.raw_reply import RawReply


def plain(value: object) -> Json:
    """A value as JSON has it: bytes as base64, a dataclass or a pydantic model as an object."""
    return cast("Json", msgspec.json.decode(msgspec.json.encode(value, enc_hook=_of_pydantic)))


def _of_pydantic(value: Any) -> object:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else str(value)


def in_plain_values(
    *,
    text: str,
    reasoning: str | None,
    status: TurnStatus,
    stop_reason: StopReason,
    model: str,
    usage: TokenUsage,
    cost: Cost,
    tool_calls: Sequence[ToolUseBlock],
    warnings: Sequence[CallWarning],
    messages: Sequence[Message] | None = None,
    raw: RawReply | None = None,
    provider_details: JsonObject | None = None,
) -> JsonObject:
    """What a caller wants of a result, as a dict that any JSON library writes. Money is exact text."""
    counts = {name: getattr(usage, name) for name in _COUNTS}
    found: JsonObject = {
        "text": text,
        "reasoning": reasoning,
        "status": status,
        "stop_reason": str(stop_reason),
        "model": model,
        "usage": {**counts, "source": str(usage.source)},
        "cost": {"usd": None if cost.usd is None else f"{cost.usd:f}", "source": str(cost.source)},
        "tool_calls": [{"id": call.id, "name": call.name, "input": plain(call.input)} for call in tool_calls],
        "warnings": [{"code": str(each.code), "message": each.message} for each in warnings],
    }
    if messages is not None:
        found["messages"] = plain(messages)
    if raw is not None:
        found["raw"] = plain(raw)
    if provider_details:
        found["provider_details"] = plain(provider_details)
    return found


_COUNTS = (
    *("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    "reasoning_tokens",
)


def in_markdown(text: str, model: str, usage: TokenUsage, cost: Cost) -> str:
    """A reply as Markdown, with a line on how it came about."""
    amount = "unpriced" if cost.usd is None else f"{cost.usd:f} USD"
    return f"{text}\n\n---\n*{model}, {usage.total_tokens:,} tokens, {amount}*"

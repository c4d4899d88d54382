"""Results as plain values and as Markdown: for a web response, a log, or a notebook cell."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from callboard.adapters import CallWarning, ContentBlock, Message, StopReason, TokenUsage, ToolUseBlock
from callboard.bus import Cost, TurnStatus
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import RawReply


def plain(value: object) -> Json:
    """A value as JSON has it: bytes as base64, a dataclass or a pydantic model as an object."""
    try:
        return cast("Json", msgspec.json.decode(msgspec.json.encode(value, enc_hook=_of_pydantic)))
    except UnicodeError:  # half of a surrogate pair, which UTF-8 cannot hold
        return cast("Json", msgspec.to_builtins(value, enc_hook=_of_pydantic))


def _of_pydantic(value: Any) -> object:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else str(value)


def renamed(old: str, new: str) -> None:
    """Warn that an attribute has a new name. Call it from the property with the old name."""
    python_warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)


def _tokens(usage: TokenUsage) -> JsonObject:
    return {**{name: getattr(usage, name) for name in _COUNTS}, "source": str(usage.source)}


def _money(cost: Cost) -> JsonObject:
    return {"usd": None if cost.usd is None else f"{cost.usd:f}", "source": str(cost.source)}


def in_plain_values(
    *,
    text: str,
    content: Sequence[ContentBlock],
    thinking: str,
    status: TurnStatus,
    stop_reason: StopReason,
    raw_stop_reason: str | None,
    model: str,
    usage: TokenUsage,
    cost: Cost,
    total_usage: TokenUsage,
    total_cost: Cost,
    tool_uses: Sequence[ToolUseBlock],
    warnings: Sequence[CallWarning],
    messages: Sequence[Message] | None = None,
    raw: RawReply | None = None,
    provider_details: JsonObject | None = None,
) -> JsonObject:
    """A result as a dict that any JSON library can write. Money is exact text.

    `reasoning` and `tool_calls` are the earlier names of `thinking` and `tool_uses`. They stay, because hosts
    store such dicts.
    """
    calls: list[Json] = [{"id": call.id, "name": call.name, "input": plain(call.input)} for call in tool_uses]
    found: JsonObject = {
        "text": text,
        "content": plain(content),
        "thinking": thinking,
        "reasoning": thinking or None,
        "status": status,
        "stop_reason": str(stop_reason),
        "raw_stop_reason": raw_stop_reason,
        "model": model,
        "usage": _tokens(usage),
        "cost": _money(cost),
        "total_usage": _tokens(total_usage),
        "total_cost": _money(total_cost),
        "tool_uses": calls,
        "tool_calls": calls,
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

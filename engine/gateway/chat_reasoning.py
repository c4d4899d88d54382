"""Reasoning in Chat Completions: reading reasoning from histories, and writing its opaque parts into replies.
Pure.

OpenAI has no fields for reasoning. DeepSeek has `reasoning_content`, OpenRouter has `reasoning` and
`reasoning_details`, and LiteLLM has `thinking_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ProviderRaw, RedactedThinkingBlock, ThinkingBlock

PROTOCOL = "openai_compatible"
"""The adapters' name for the protocol. It marks the fields that only this protocol understands."""

ANTHROPIC = "anthropic"
ANTHROPIC_FORMAT = "anthropic-claude-v1"
"""OpenRouter's name for Anthropic's reasoning."""


def as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def flat_text(value: Json) -> str:
    """The text in a string, in a text part, or in a list of them."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in [value, *as_list(value)]]
    return "".join(text for text in texts if isinstance(text, str))


def read_reasoning(message: JsonObject) -> Iterator[ThinkingBlock | RedactedThinkingBlock]:
    """The reasoning of a reply in the history. If it has several forms, the most exact one is read."""
    text = message.get("reasoning_content") or message.get("reasoning")
    plain_text = text if isinstance(text, str) else ""
    extra = message.get("extra_content")
    if isinstance(extra, dict):
        yield ThinkingBlock("", provider_raw=ProviderRaw(PROTOCOL, {"extra_content": extra}))
    blocks = as_list(message.get("thinking_blocks"))
    details = _merged(as_list(message.get("reasoning_details")))
    if blocks:
        yield from _thinking_blocks(blocks)
    elif details:
        yield from _details(details, plain_text)
    elif plain_text:
        field: JsonObject = {} if message.get("reasoning_content") else {"reasoning_field": "reasoning"}
        yield ThinkingBlock(plain_text, provider_raw=ProviderRaw(PROTOCOL, field))


def _thinking_blocks(blocks: list[Json]) -> Iterator[ThinkingBlock | RedactedThinkingBlock]:
    """Read LiteLLM's form of Anthropic's blocks."""
    for block in blocks:
        match block:
            case {"type": "redacted_thinking", "data": str(data)}:
                yield RedactedThinkingBlock(data)
            case {"thinking": str(text), "signature": str(signature)} if signature:
                yield ThinkingBlock(text, signature)
            case {"thinking": str(text)}:
                yield ThinkingBlock(text)
            case _:
                pass


def _details(details: list[JsonObject], plain_text: str) -> Iterator[ThinkingBlock | RedactedThinkingBlock]:
    """Read OpenRouter's form. Each part of Anthropic's reasoning becomes a block. All other parts become one
    block.
    """
    others: list[Json] = []
    signed = [detail for detail in details if detail.get("signature")]
    for detail in details:
        signature, data = detail.get("signature"), detail.get("data")
        if detail.get("format") != ANTHROPIC_FORMAT or not (signature or data):
            others.append(detail)
        elif isinstance(signature, str):
            text = _detail_text(detail) or (plain_text if len(signed) == 1 else "")
            yield ThinkingBlock(text, signature, _raw({**detail, "text": text}))
        else:
            yield RedactedThinkingBlock(str(data), _raw(detail))
    if others:
        text = "".join(_detail_text(detail) for detail in others if isinstance(detail, dict))
        last = others[-1]
        mark = last.get("signature") if isinstance(last, dict) else None
        yield ThinkingBlock(text, mark if isinstance(mark, str) and mark else None, _raw(*others))


def _raw(*details: Json) -> ProviderRaw:
    return ProviderRaw(PROTOCOL, {"reasoning_details": [*details]})


def _detail_text(detail: JsonObject) -> str:
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""


def _merged(details: list[Json]) -> list[JsonObject]:
    """Join the pieces of each detail that were streamed separately."""
    merged: list[JsonObject] = []
    for detail in details:
        if not isinstance(detail, dict):
            continue
        last = merged[-1] if merged else None
        joins = last is not None and "data" not in detail and not last.get("signature")
        if last is None or not joins or any(last.get(name) != detail.get(name) for name in ("type", "index")):
            merged.append(dict(detail))
            continue
        for name, value in detail.items():
            old = last.get(name)
            if name in ("text", "summary") and isinstance(value, str) and isinstance(old, str):
                last[name] = old + value
            elif value is not None:
                last[name] = value
    return merged


def reasoning_details(content: Iterable[ContentBlock], *, with_text: bool) -> list[Json]:
    """The opaque parts of reasoning, for clients that send them back: OpenRouter's own parts, and Anthropic's."""
    details: list[Json] = []
    for block in content:
        if not isinstance(block, ThinkingBlock | RedactedThinkingBlock):
            continue
        raw = block.provider_raw
        common: JsonObject = {"format": ANTHROPIC_FORMAT, "index": len(details)}
        if raw is not None and "reasoning_details" in raw.data:
            entries = as_list(raw.data["reasoning_details"])
            details += entries if with_text else _without_text(entries)
        elif raw is not None and raw.provider != ANTHROPIC:
            continue  # signatures of other providers have no form here
        elif isinstance(block, RedactedThinkingBlock):
            details.append({"type": "reasoning.encrypted", "data": block.data, **common})
        elif block.signature:
            text: JsonObject = {"text": block.text} if with_text else {}
            details.append({"type": "reasoning.text", **text, "signature": block.signature, **common})
    return details


def _without_text(details: list[Json]) -> Iterator[JsonObject]:
    """The opaque parts of details whose text was streamed before. A detail without such parts is left out."""
    for detail in details:
        if isinstance(detail, dict) and (detail.get("signature") or detail.get("data")):
            yield {name: value for name, value in detail.items() if name not in ("text", "summary")}


def signed_message(content: Iterable[ContentBlock]) -> JsonObject:
    """Gemini's signature of a whole message, in the form of Google's Chat Completions endpoint."""
    for block in content:
        raw = block.provider_raw if isinstance(block, ThinkingBlock) else None
        if raw is not None and "extra_content" in raw.data:
            return {"extra_content": raw.data["extra_content"]}
    return {}

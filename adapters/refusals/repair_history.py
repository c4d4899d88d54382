"""Histories without reasoning, or with exchanges of tools in words. Pure.

Reasoning is mostly in blocks of its own. Gemini also signs texts and calls, in the provider's data of such a
block, and an opaque block may have only a signature.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

_SIGNATURES = ("signatures", "thoughtSignature")
_EXTRA: Json = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""Extra data that Google's Chat Completions endpoint accepts in place of a call's signature."""


def without_reasoning(message: Message, provider: str) -> Message:
    """The message without a provider's reasoning and signatures; the same object if it has none. It may be empty.

    Reasoning of an unknown provider counts as this provider's.
    """
    kept = [bare for block in message.content if (bare := _bare(block, provider)) is not None]
    if len(kept) == len(message.content) and all(map(_same, kept, message.content)):
        return message
    return msgspec.structs.replace(message, content=tuple(kept))


def bared_blocks(before: Message, after: Message) -> int:
    """The number of blocks that `without_reasoning` changed or removed."""
    kept = {id(block) for block in after.content}
    return sum(id(block) not in kept for block in before.content)


def _same(one: ContentBlock, other: ContentBlock) -> bool:
    return one is other


def _bare(block: ContentBlock, provider: str) -> ContentBlock | None:
    """A block without its signature. None if it is empty then."""
    match block:
        case ThinkingBlock(provider_raw=raw) | RedactedThinkingBlock(provider_raw=raw):
            return None if raw is None or raw.provider == provider else block
        case TextBlock(provider_raw=ProviderRaw() as raw) | ToolUseBlock(provider_raw=ProviderRaw() as raw):
            data = _unsigned(raw, provider)
            if data is raw.data:
                return block
            return msgspec.structs.replace(
                block, provider_raw=msgspec.structs.replace(raw, data=data) if data else None
            )
        case OpaqueBlock(provider_raw=raw):
            data = _unsigned(raw, provider)
            if data is raw.data:
                return block
            if not data.get("text", True):
                return None
            return msgspec.structs.replace(block, provider_raw=msgspec.structs.replace(raw, data=data))
        case _:
            return block


def _unsigned(raw: ProviderRaw, provider: str) -> JsonObject:
    """The provider's data without signatures; the same object if it has none or is another provider's."""
    data = raw.data
    if raw.provider != provider:
        return data
    if any(name in data for name in _SIGNATURES):
        data = {name: value for name, value in data.items() if name not in _SIGNATURES}
    if _is_signed(data.get("extra_content")):
        data = {**data, "extra_content": _EXTRA}
    return data


def _is_signed(extra: Json) -> bool:
    google = extra.get("google") if isinstance(extra, dict) else None
    return isinstance(google, dict) and "thought_signature" in google and extra != _EXTRA


# --- Exchanges of tools in words ---


def tell_tools(
    messages: Iterable[Message], told: Mapping[str, ToolUseBlock], wire_ids: Collection[str]
) -> Iterator[Message]:
    """The messages with these calls and their results in words."""
    for message in messages:
        match message.role:
            case Role.ASSISTANT:
                kept = tuple(block for block in message.content if not _is_told(block, told, wire_ids))
                if kept != message.content:  # reasoning is bound to the blocks after it
                    kept = tuple(
                        block for block in kept if not isinstance(block, ThinkingBlock | RedactedThinkingBlock)
                    )
            case Role.TOOL:
                results = [block for block in message.content if isinstance(block, ToolResultBlock)]
                kept = tuple(block for block in results if block.tool_use_id not in told)
                yield from (
                    _told(told[block.tool_use_id], block) for block in results if block.tool_use_id in told
                )
            case _:
                kept = message.content
        if kept == message.content:
            yield message
        elif kept:
            yield msgspec.structs.replace(message, content=kept)


def _is_told(block: ContentBlock, told: Mapping[str, ToolUseBlock], wire_ids: Collection[str]) -> bool:
    match block:
        case ToolUseBlock():
            return block.id in told
        case OpaqueBlock():
            return block.provider_raw.data.get("call_id") in wire_ids
        case _:
            return False


def _told(call: ToolUseBlock, result: ToolResultBlock) -> Message:
    arguments = msgspec.json.encode(call.input, order="deterministic").decode()
    how = "failed" if result.is_error else "answered"
    said = TextBlock(f"The tool {call.name} was called with {arguments} and {how}:")
    if isinstance(result.content, str):
        return Message.user((said, TextBlock(result.content)))
    content: tuple[ResultPart, ...] = result.content
    return Message.user((said, *content))

"""Marks of the prompt cache in a body of Chat Completions. This module is pure.

Anthropic's models behind OpenRouter, LiteLLM and others take a mark `cache_control` on a part of a message, and
refuse more than four of them, as well as a mark on an empty text. A host that marks each message as it sends it
has one more with every turn. The last marks cover the others. The marks of tools and system texts cover what other
conversations share. So the oldest marks of the conversation are left out first.
"""

from __future__ import annotations

from collections.abc import Iterator

from callboard.bus.values.json import Json, JsonObject

MOST = 4
"""The largest number of marks in a request."""

_MARK = "cache_control"


def keep_latest(body: JsonObject) -> None:
    """Remove marks from a body until at most `MOST` are left. Marks on empty texts are removed first.

    Args:
        body: The body. Messages that change are copied.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    marked = [place for place, message in enumerate(messages) if _count(message)]
    if not marked:
        return
    for place in marked:
        messages[place], _ = _without(messages[place], only_empty=True)
    tools = body.get("tools")
    surplus = (_MARK in body) + _count(tools) + sum(map(_count, messages)) - MOST
    first = [place for place in marked if not _is_system(messages[place])]
    last = [place for place in marked if _is_system(messages[place])]
    for place in (*first, *last):
        while surplus > 0 and _count(messages[place]):
            messages[place], removed = _without(messages[place], only_empty=False)
            surplus -= removed


def _is_system(message: Json) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _count(value: Json) -> int:
    return sum(1 for _ in _marked(value))


def _marked(value: Json) -> Iterator[JsonObject]:
    """Messages, parts, calls and tools with a mark."""
    if isinstance(value, list):
        for entry in value:
            yield from _marked(entry)
    elif isinstance(value, dict):
        if _MARK in value:
            yield value
        for name in ("content", "tool_calls", "function"):
            if isinstance(inner := value.get(name), list | dict):
                yield from _marked(inner)


def _without(value: Json, *, only_empty: bool) -> tuple[Json, int]:
    """A copy without the marks on empty texts, or without its first mark, and the number of removed marks."""
    if isinstance(value, list):
        entries, removed = list(value), 0
        for at, entry in enumerate(entries):
            if only_empty or not removed:
                entries[at], count = _without(entry, only_empty=only_empty)
                removed += count
        return entries, removed
    if not isinstance(value, dict):
        return value, 0
    text = value.get("text", value.get("content"))
    if _MARK in value and (not only_empty or (isinstance(text, str) and not text.strip())):
        return {name: inner for name, inner in value.items() if name != _MARK}, 1
    copy, removed = dict(value), 0
    for name in ("content", "tool_calls", "function"):
        if isinstance(copy.get(name), list | dict) and (only_empty or not removed):
            copy[name], count = _without(copy[name], only_empty=only_empty)
            removed += count
    return copy, removed

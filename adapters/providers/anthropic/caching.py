"""Breakpoints of Anthropic's prompt cache. Pure.

A prompt is read in the order tools, system, messages. A request finds a cached prefix at its breakpoint, or at
most 20 blocks after it. So a conversation gets two breakpoints: at its end, and at the end of the former request.
Tools and system get one each, for other conversations. At most four are accepted, the host's first. A rough count
of tokens is enough, because a breakpoint after too little text has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from callboard.bus.values.base import Json, JsonObject, json_size

MOST = 4
TTLS = ("5m", "1h")
_BYTES_PER_TOKEN = 3  # a low number, so that a doubtful prompt is marked
_IMAGE_BYTES = 3_000  # the bytes that an image counts for, at any size
_MARKED = "cache_control"
_CARRIERS = frozenset({"text", "image", "document", "tool_use", "tool_result", "server_tool_use", "mcp_tool_use"})


_Spot: TypeAlias = tuple[list[Json], int]
"""A block that can have a breakpoint: its list and index."""


def mark(
    body: JsonObject, *, minimum: int, ttl: str, conversation: bool, tools_bytes: int, hosts: bool = True
) -> None:
    """Put breakpoints into a body. Marked blocks are copied."""
    spots = _spots(body, minimum * _BYTES_PER_TOKEN, tools_bytes, conversation and _MARKED not in body)
    room = MOST - len(list(_marked(body))) if hosts else MOST
    chosen = spots[-room:] if room > 0 else []
    control: JsonObject = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    for home, at in chosen:
        block = home[at]
        assert isinstance(block, dict)
        home[at] = {**block, _MARKED: control}
    if chosen and room < MOST:
        _keep_order(body, control)


def keep_latest(body: JsonObject) -> None:
    """Remove the oldest breakpoints of the messages, down to the limit.

    A host that marks each message has one more with every turn, and the last ones cover the others.
    """
    surplus = len(list(_marked(body))) - MOST
    messages = body["messages"]
    for message in messages if surplus > 0 and isinstance(messages, list) else ():
        for home in _homes(_field(message, "content")):
            for at, block in enumerate(home):
                if surplus > 0 and isinstance(block, dict) and _MARKED in block:
                    home[at] = {name: value for name, value in block.items() if name != _MARKED}
                    surplus -= 1


def _homes(blocks: Json) -> Iterator[list[Json]]:
    """Lists of blocks in the order of the prompt. Inner blocks come after their block's own list."""
    if isinstance(blocks, list):
        yield blocks
        for block in blocks:
            yield from _homes(_field(block, "content"))


def _keep_order(body: JsonObject, ours: JsonObject) -> None:
    """Remove our breakpoints where a longer-lived one would follow a shorter-lived one, which is refused."""
    marked = list(_marked(body))
    brief = ours.get("ttl") is None
    spoiled: list[JsonObject] = []
    for number, block in enumerate(marked):
        if block[_MARKED] is not ours:
            continue
        others = marked[number + 1 :] if brief else marked[:number]
        if any(_is_brief(other) is not brief for other in others):  # all of ours have the same lifetime
            spoiled.append(block)
    for block in spoiled:
        del block[_MARKED]


def _spots(body: JsonObject, least: int, size: int, conversation: bool) -> list[_Spot]:
    """The possible places, in the order of the prompt, after enough text.

    The most important come last: the conversation's cover the others.
    """
    spots: list[_Spot | None] = []
    tools = body.get("tools")
    if size >= least and isinstance(tools, list):
        spots.append(_last(tools, any_kind=True))
    system = body.get("system")
    if isinstance(system, str):
        size += len(system)
        if size >= least and system:  # a string can't have one
            system = body["system"] = [{"type": "text", "text": system}]
    elif isinstance(system, list):
        size += json_size(system)
        if size >= least:
            system = body["system"] = system[:]  # the list belongs to the host
    if size >= least and isinstance(system, list):
        spots.append(_last(system))
    messages = body["messages"]
    if conversation and isinstance(messages, list):
        spots += _in_messages(messages, size, least)
    return [spot for spot in spots if spot is not None]


def _in_messages(messages: list[Json], size: int, least: int) -> Iterator[_Spot | None]:
    """The last user block before the last reply, and the last block."""
    last = len(messages) - 1
    former = next((n - 1 for n in range(last, 0, -1) if _field(messages[n], "role") == "assistant"), -1)
    enough = _long_enough_with(messages, size, least)
    for number in (former, last):
        if number >= enough and isinstance(content := _field(messages[number], "content"), list):
            yield _last(content)


def _long_enough_with(messages: list[Json], size: int, least: int) -> int:
    """The index of the message that makes the prompt long enough; one past the end if none does."""
    if size >= least:
        return 0
    for place, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            text = block.get("text") if isinstance(block, dict) else None  # it nearly always has a text
            size += len(text) if isinstance(text, str) else _size(block)
        if size >= least:
            return place
    return len(messages)


def _last(blocks: list[Json], *, any_kind: bool = False) -> _Spot | None:
    """The last block that can have a breakpoint and has none; None if the host's is there or later."""
    for at in range(len(blocks) - 1, -1, -1):
        block = blocks[at]
        if isinstance(block, dict):
            if _MARKED in block:
                return None
            if (any_kind and not block.get("defer_loading")) or (not any_kind and _carries(block)):
                return blocks, at
    return None


def _carries(block: JsonObject) -> bool:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return isinstance(text, str) and bool(text.strip())
    return kind in _CARRIERS or (isinstance(kind, str) and kind.endswith("_tool_result"))


def _size(block: Json) -> int:
    """A rough number of bytes of a block's text."""
    match block:
        case {"text": str(text)}:
            return len(text)
        case {"type": "tool_result", "content": str(text)}:
            return len(text)
        case {"type": "image" | "document"}:
            return _IMAGE_BYTES
        case {"type": "tool_result", "content": list(parts)}:
            return sum(_size(part) for part in parts)
        case {"type": "tool_use", "input": given}:
            return json_size(given)
        case {"type": "thinking", "signature": str(signature)}:
            return len(signature)
        case _:
            return 0


def _field(message: Json, name: str) -> Json:
    return message.get(name) if isinstance(message, dict) else None


def _parts(body: JsonObject) -> Iterator[JsonObject]:
    """Everything that may have a breakpoint, in the order of the prompt."""
    messages = body["messages"]
    said = [_field(message, "content") for message in messages] if isinstance(messages, list) else []
    for blocks in (body.get("tools"), body.get("system"), *said):
        if isinstance(blocks, list):
            for block in blocks:
                if isinstance(block, dict):
                    yield block
                    if isinstance(inner := block.get("content"), list):
                        yield from (part for part in inner if isinstance(part, dict))


def _marked(body: JsonObject) -> Iterator[JsonObject]:
    """Everything with a breakpoint, in the order of the prompt. The body itself is last, because its own is at the
    end.
    """
    for block in _parts(body):
        if _MARKED in block:
            yield block
    if _MARKED in body:
        yield body


def _is_brief(block: JsonObject) -> bool:
    control = block[_MARKED]
    return not isinstance(control, dict) or control.get("ttl", "5m") == "5m"

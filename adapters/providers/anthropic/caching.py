"""Where Anthropic's prompt cache may end a prefix: breakpoints, placed so that a turn finds its former one. Pure.

A prompt is read in the order tools, system, messages. What stands before a breakpoint is written to the cache, and
found again by a request that has a breakpoint there, or at most 20 blocks further. So a conversation gets two: at
its end, for the turn to come, and where the former request had its end, for that may lie more than 20 blocks back.
Tools and system get one each, for other conversations that share them. At most four are accepted, those of the
host among them, which go first; of ours the conversation's count more, for they cover the others.

A breakpoint before too little text does nothing, so a rough count of tokens is good enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bus.values.json import Json, JsonObject

MOST = 4
TTLS = ("5m", "1h")
_BYTES_PER_TOKEN = 3  # fewer than there are: in doubt it is marked
_IMAGE_BYTES = 3_000  # what a picture counts for, whatever its size
_MARKED = "cache_control"
_CARRIERS = frozenset({"text", "image", "document", "tool_use", "tool_result", "server_tool_use", "mcp_tool_use"})


class _Spot(msgspec.Struct):
    """A block that can carry a breakpoint: `home[at]`. The block with the lowest rank is the most important."""

    home: list[Json]
    at: int
    rank: int


def mark(body: JsonObject, *, minimum: int, ttl: str, conversation: bool, hosts: bool = True) -> None:
    """Put breakpoints into a body. Blocks that get one are copied.

    Args:
        body: The body.
        minimum: The number of tokens of a prefix below which nothing is cached.
        ttl: The lifetime, ``5m`` or ``1h``.
        conversation: Whether the messages will be sent again, with more after them.
        hosts: Whether there may be breakpoints of the host's.
    """
    spots = list(_spots(body, minimum * _BYTES_PER_TOKEN, conversation and _MARKED not in body))
    if not spots:
        return
    room = MOST - len(list(_marked(body))) if hosts else MOST
    control: JsonObject = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    chosen = sorted(spots, key=lambda spot: spot.rank)[: max(room, 0)]
    for spot in chosen:
        block = spot.home[spot.at]
        assert isinstance(block, dict)
        spot.home[spot.at] = {**block, _MARKED: control}
    if chosen and room < MOST:
        _keep_order(body, control)


def keep_latest(body: JsonObject) -> None:
    """Take breakpoints of the messages away, the oldest first, until there are as many as may be.

    A host that marks each message as it sends it has one more with every turn, and the last ones cover the others.
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
    """Lists of blocks in the order of the prompt: those inside of a block come after the block's own list."""
    if isinstance(blocks, list):
        yield blocks
        for block in blocks:
            yield from _homes(_field(block, "content"))


def _keep_order(body: JsonObject, ours: JsonObject) -> None:
    """Take ours away where a longer-lived breakpoint would come after a shorter-lived one, which is refused."""
    marked = list(_marked(body))
    brief = ours.get("ttl") is None
    spoiled: list[JsonObject] = []
    for number, block in enumerate(marked):
        if block[_MARKED] is not ours:
            continue
        others = marked[number + 1 :] if brief else marked[:number]
        if any(_is_brief(other) is not brief for other in others):  # all of ours are alike
            spoiled.append(block)
    for block in spoiled:
        del block[_MARKED]


def _spots(body: JsonObject, least: int, conversation: bool) -> Iterator[_Spot]:
    """Where breakpoints may go, in the order of the prompt, as far as enough stands before them."""
    size = 0
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        size += _length(tools)
        if size >= least and (spot := _last(tools, 3, any_kind=True)):
            yield spot
    system = body.get("system")
    if isinstance(system, str | list):
        size += _length(system)
    if (
        size >= least and isinstance(system, str | list) and system
    ):  # a string can't carry one, and a list is the host's
        body["system"] = system = [{"type": "text", "text": system}] if isinstance(system, str) else system[:]
    if size >= least and isinstance(system, list) and (spot := _last(system, 2)):
        yield spot
    messages = body["messages"]
    if not conversation or not isinstance(messages, list):
        return
    yield from _in_messages(messages, size, least)


def _in_messages(messages: list[Json], size: int, least: int) -> Iterator[_Spot]:
    """At the end, and at the end of what the user said before the last reply."""
    last = len(messages) - 1
    former = next((n - 1 for n in range(last, 0, -1) if _field(messages[n], "role") == "assistant"), -1)
    enough = _long_enough_with(messages, size, least)
    for number, rank in ((former, 1), (last, 0)):
        content = _field(messages[number], "content") if number >= enough else None
        if isinstance(content, list) and (spot := _last(content, rank)):
            yield spot


def _long_enough_with(messages: list[Json], size: int, least: int) -> int:
    """The place of the message with which the prompt is long enough; one beyond the last if it never is."""
    for place, message in enumerate(messages):
        if size < least and isinstance(message, dict) and isinstance(content := message.get("content"), list):
            for block in content:
                size += _size(block)
        if size >= least:
            return place
    return len(messages)


def _last(blocks: list[Json], rank: int, *, any_kind: bool = False) -> _Spot | None:
    """The last block that can carry a breakpoint and has none; None if the host's stands there, or after it."""
    for at in range(len(blocks) - 1, -1, -1):
        block = blocks[at]
        if isinstance(block, dict):
            if _MARKED in block:
                return None
            if (any_kind and not block.get("defer_loading")) or (not any_kind and _carries(block)):
                return _Spot(blocks, at, rank)
    return None


def _carries(block: JsonObject) -> bool:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return isinstance(text, str) and bool(text.strip())
    return kind in _CARRIERS or (isinstance(kind, str) and kind.endswith("_tool_result"))


def _size(block: Json) -> int:
    """About the bytes of a block's text."""
    if type(block) is dict and type(text := block.get("text")) is str:  # nearly always, and a match takes its time
        return len(text)
    match block:
        case {"type": "tool_result", "content": str(text)}:
            return len(text)
        case {"type": "image" | "document"}:
            return _IMAGE_BYTES
        case {"type": "tool_result", "content": list(parts)}:
            return sum(_size(part) for part in parts)
        case {"type": "tool_use", "input": given}:
            return _length(given)
        case {"type": "thinking", "signature": str(signature)}:
            return len(signature)
        case _:
            return 0


def _length(value: Json) -> int:
    try:
        return len(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return len(str(value))


def _field(message: Json, name: str) -> Json:
    return message.get(name) if isinstance(message, dict) else None


def _parts(body: JsonObject) -> Iterator[JsonObject]:
    """All that may have a breakpoint, in the order of the prompt."""
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
    """All that has a breakpoint, in the order of the prompt; the body itself last, whose own is at the end."""
    for block in _parts(body):
        if _MARKED in block:
            yield block
    if _MARKED in body:
        yield body


def _is_brief(block: JsonObject) -> bool:
    control = block[_MARKED]
    return not isinstance(control, dict) or control.get("ttl", "5m") == "5m"

"""What goes back of blocks that only the provider can read, and in which form. Pure.

* Calls of the provider's own tools come in pairs with their results, across messages; one without the other would
  make every later request fail. Only the last turn may still be waiting for a result, and the container that it
  waits in is named beside the messages.
* Where a model declined and another went on, a block marks the place, and stays there. Of what came before it only
  text and the provider's own tools with their results go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from callboard.adapters.requests.fitted import FittedHistory
from callboard.bus.values.content import ContentBlock, OpaqueBlock, RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import Message, Role

from .wire import CONTAINER, FALLBACK

_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")


class OwnBlocks(NamedTuple):
    """Which of a history's blocks may not go back to the provider that they came from."""

    declined: Mapping[int, ContentBlock] = {}
    """The blocks that a model said before it declined, by identity."""
    declined_calls: Set[str] = frozenset()
    """The ids of the calls among them."""
    unpaired: Set[int] = frozenset()
    """The identities of the provider's calls without a result, and of results without a call."""
    calls: Set[str] = frozenset()
    """The ids of the provider's calls that do go back."""


_NONE = OwnBlocks()


def own_blocks(history: FittedHistory) -> OwnBlocks:
    """Which blocks of a fitted history may not go back."""
    opaque = _opaque_blocks(history.messages[len(history.plain) :])
    if not opaque:
        return _NONE
    declined, unpaired = _declined(history.messages), _unpaired_server_tools(history.messages)
    sent = [block for block in opaque if id(block) not in unpaired and id(block) not in declined]
    return OwnBlocks(
        declined,
        {block.id for block in declined.values() if isinstance(block, ToolUseBlock)},
        unpaired,
        {call_id for block in sent if isinstance(call_id := block.provider_raw.data.get("id"), str)},
    )


def open_container(history: FittedHistory) -> str | None:
    """The container in which tools of the last turn wait to go on: the request must name it.

    None once the user has spoken: nothing waits any more, and a container that has expired would be refused.
    """
    for message in reversed(history.messages):
        for block in reversed(message.content):
            if isinstance(block, OpaqueBlock) and block.kind == CONTAINER:
                container_id = block.provider_raw.data.get("id")
                if isinstance(container_id, str):
                    return container_id
        if message.role is Role.USER:
            break
    return None


def _opaque_blocks(messages: Iterable[Message]) -> list[OpaqueBlock]:
    """The blocks of messages that only their provider can read."""
    unusual = [message for message in messages if message.plain_text is None]
    return [block for message in unusual for block in message.content if isinstance(block, OpaqueBlock)]


def _declined(messages: Iterable[Message]) -> dict[int, ContentBlock]:
    """What a model said before it declined and another went on, as far as it may not go back; by identity."""
    found: dict[int, ContentBlock] = {}
    for message in messages:
        content = message.content if message.role is Role.ASSISTANT else ()
        places = [
            at for at, block in enumerate(content) if isinstance(block, OpaqueBlock) and block.kind == FALLBACK
        ]
        before = content[: places[-1]] if places else ()
        data = [block.provider_raw.data for block in before if isinstance(block, OpaqueBlock)]
        answered = [fields.get("tool_use_id") for fields in data]
        for block in before:
            match block:
                case ThinkingBlock() | RedactedThinkingBlock() | ToolUseBlock():
                    found[id(block)] = block
                case OpaqueBlock(kind=kind, provider_raw=raw) if kind == "connector_text" or (
                    kind in _SERVER_CALLS and raw.data.get("id") not in answered
                ):
                    found[id(block)] = block
                case _:
                    pass
    return found


def _unpaired_server_tools(messages: Iterable[Message]) -> frozenset[int]:
    """Opaque tool calls without a result and results without a call, by identity.

    A call in the last turn still waits for its result: the reply was paused, or a tool of ours has to run first.
    """
    waiting: dict[str, OpaqueBlock] = {}
    unpaired: set[int] = set()
    for message in messages:
        if message.role is Role.USER:
            unpaired.update(id(block) for block in waiting.values())
            waiting.clear()
        for block in message.content:
            if isinstance(block, OpaqueBlock):
                match block.provider_raw.data:
                    case {"type": str(kind), "tool_use_id": str(call_id)} if kind.endswith("_result"):
                        if waiting.pop(call_id, None) is None:
                            unpaired.add(id(block))
                    case {"type": "server_tool_use" | "mcp_tool_use", "id": str(call_id)}:
                        waiting[call_id] = block
                    case _:
                        pass
    return frozenset(unpaired)


def sent_citation(data: JsonObject) -> JsonObject:
    """A citation of a reply as a request takes it."""
    return {name: value for name, value in data.items() if name != "file_id"}


def without_nulls(data: JsonObject) -> JsonObject:
    """A block of a reply as a request takes it: its optional fields may be absent there, but not null."""
    return {name: _inner(name, value) for name, value in data.items() if value is not None or name == "content"}


def _inner(name: str, value: Json) -> Json:
    """What a block has within it, as a request takes it: the blocks that it holds, and their citations."""
    match name, value:
        case "content", dict():
            return without_nulls(value)
        case "content", list():
            return [_with_citations(block) if isinstance(block, dict) else block for block in value]
        case _:
            return value


def _with_citations(data: JsonObject) -> JsonObject:
    """A block within another, its citations as a request takes them."""
    match data.get("citations"):
        case list(given):
            return {**data, "citations": [sent_citation(one) if isinstance(one, dict) else one for one in given]}
        case _:
            return data

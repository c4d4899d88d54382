"""A fitted history as the input items of a Responses call. Pure.

The call is stateless (`store` is false), so the history goes along each time. What OpenAI checks most strictly is
that a reasoning item is followed by the very item that it preceded when it was made: so a reasoning item goes back
whole, with its encrypted content, and the items after it with their own ids; where it can't go back, the ids of
the items after it stay behind too. Ids are never sent alone, for nothing is stored under them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable

import msgspec

from adapters.contract import CanonicalRequest
from adapters.history import FittedHistory, Loss
from bus.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from bus.json_types import Json, JsonObject
from bus.messages import Message, Role

from .response import REASONING_PART

SELF_CONTAINED = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_call",
        "compaction",
    }
)
"""Items that say all there is to say, and may go back without anything being stored."""

_ANSWERED = re.compile(
    r"(tool_search|shell|local_shell|apply_patch|computer|custom_tool)_call(_output)?|tool_search_output"
)
"""Items that come in pairs, a call and its output; one may go back only with the other."""


def write_items(request: CanonicalRequest, history: FittedHistory, provider: str) -> tuple[list[Json], list[Loss]]:
    """The items, and what had to be left out of them. provider: the adapter's name."""
    return _Writer(request, history, provider).write()


class _Writer:
    def __init__(self, request: CanonicalRequest, history: FittedHistory, provider: str) -> None:
        self.request = request
        self.history = history
        self.provider = provider
        self.losses: list[Loss] = []
        self.items: list[Json] = []

    def write(self) -> tuple[list[Json], list[Loss]]:
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT:
                    self._assistant(message)
                case Role.TOOL:
                    self.items += [self._result(block) for block in message.content]
                case role:
                    self.items.append({"role": str(role), "content": _content(message.content)})
        if not self.items:
            self.items.append({"role": "user", "content": ""})  # an empty input is refused
        return self.items, self.losses

    def _assistant(self, message: Message) -> None:
        blocks = self._pairs(message.content)
        with_ids = False
        for position, block in enumerate(blocks):
            match block:
                case ThinkingBlock():
                    item = _reasoning_item(_own(block, self.provider))
                    assert item is not None
                    with_ids = "id" in item
                    self.items.append(item)
                case TextBlock():
                    former = blocks[position - 1] if position else None
                    self._text(block, former, with_ids=with_ids)
                case ToolUseBlock():
                    self.items.append(self._call(block, with_ids=with_ids))
                case OpaqueBlock():
                    self.items.append(block.provider_raw.data)
                case _:
                    self._lose(block, "this protocol has no such block")

    def _pairs(self, content: Iterable[ContentBlock]) -> list[ContentBlock]:
        """What can go back. Read from the end, for a reasoning item needs the item that follows it."""
        blocks = list(content)
        calls = {_call_key(block) for block in blocks if isinstance(block, OpaqueBlock)}
        kept: list[ContentBlock] = []
        followed = False
        for block in reversed(blocks):
            reason = None
            match block:
                case ThinkingBlock() if _own(block, self.provider).get("type") == REASONING_PART:
                    continue  # it goes back with its item, which stands with a later block
                case ThinkingBlock():
                    if _reasoning_item(_own(block, self.provider)) is None:
                        reason = "it has no encrypted content to be known by"
                    elif not followed:
                        reason = "the item that it led to is not sent"
                case OpaqueBlock():
                    reason = _unreplayable(block, calls)
                    followed = reason is None
                case RedactedThinkingBlock() | ImageBlock():
                    reason = "this protocol has no such block"
                case _:
                    followed = True
            if reason is None:
                kept.append(block)
            else:
                self._lose(block, reason)
        return kept[::-1]

    def _text(self, block: TextBlock, former: ContentBlock | None, *, with_ids: bool) -> None:
        own = _own(block, self.provider)
        part: JsonObject = {"type": "output_text", "text": block.text, "annotations": []}
        if own.get("type") == "refusal":
            part = {"type": "refusal", "refusal": block.text}
        item_id = own.get("item_id")
        last = self.items[-1] if self.items else None
        if item_id and isinstance(former, TextBlock) and _own(former, self.provider).get("item_id") == item_id:
            assert isinstance(last, dict)
            parts = last["content"]
            assert isinstance(parts, list)
            parts.append(part)
            return
        item: JsonObject = {"type": "message", "role": "assistant"}
        if item_id and with_ids:
            item |= {"id": item_id, "status": "completed"}
        item["content"] = [part]
        if "phase" in own:
            item["phase"] = own["phase"]
        self.items.append(item)

    def _call(self, block: ToolUseBlock, *, with_ids: bool) -> JsonObject:
        own = _own(block, self.provider)
        item: JsonObject = {
            "type": "function_call",
            "call_id": self.history.tool_ids[block.id],
            "name": re.sub("[^A-Za-z0-9_-]", "_", block.name)[:64],
            "arguments": msgspec.json.encode(block.input).decode(),
        }
        if with_ids and "item_id" in own:
            item["id"] = own["item_id"]
        if "namespace" in own:
            item["namespace"] = own["namespace"]
        return item

    def _result(self, block: ContentBlock) -> JsonObject:
        assert isinstance(block, ToolResultBlock)
        prefix = "Error: " if block.is_error else ""
        output: Json
        if isinstance(block.content, str):
            output = prefix + block.content
        elif any(isinstance(part, ImageBlock) for part in block.content):
            output = [{"type": "input_text", "text": prefix}] if prefix else []
            output += [_part(part) for part in block.content]
        else:
            output = prefix + block.text
        return {
            "type": "function_call_output",
            "call_id": self.history.tool_ids[block.tool_use_id],
            "output": output,
        }

    def _lose(self, block: ContentBlock, reason: str) -> None:
        kind = str(type(block).__struct_config__.tag)
        self.losses.append(Loss(self.request.session_id, "", kind, self.provider, reason))


def _own(block: TextBlock | ThinkingBlock | ToolUseBlock, provider: str) -> JsonObject:
    """What this provider attached to a block; nothing of anyone else's."""
    raw = block.provider_raw
    return raw.data if raw is not None and raw.provider == provider else {}


def _reasoning_item(data: JsonObject) -> JsonObject | None:
    """A reasoning item as it may go back: whole if it is encrypted, without its id if it is plain, else not."""
    if data.get("type") != "reasoning":
        return None
    item: JsonObject = {name: value for name, value in data.items() if value is not None}
    item.setdefault("summary", [])
    if item.get("encrypted_content"):
        return item
    return {name: value for name, value in item.items() if name != "id"} if item.get("content") else None


def _call_key(block: OpaqueBlock) -> tuple[str, Json]:
    call_id = block.provider_raw.data.get("call_id")
    return block.kind, call_id if isinstance(call_id, str) else None


def _unreplayable(block: OpaqueBlock, calls: set[tuple[str, Json]]) -> str | None:
    """Why an item can't go back; None if it can."""
    if block.kind in SELF_CONTAINED:
        return None
    if _ANSWERED.fullmatch(block.kind):
        base = block.kind.removesuffix("_output").removesuffix("_call")
        call_id = _call_key(block)[1]
        output = "tool_search_output" if base == "tool_search" else f"{base}_call_output"
        if (f"{base}_call", call_id) in calls and (output, call_id) in calls:
            return None
        return "a call can't go back without its output, nor an output without its call"
    return "an item of this kind can't go back while nothing is stored"


def _content(blocks: Iterable[ContentBlock]) -> Json:
    parts = [block for block in blocks if isinstance(block, TextBlock | ImageBlock)]
    if len(parts) == 1 and isinstance(parts[0], TextBlock):
        return parts[0].text
    return [_part(block) for block in parts]


def _part(block: TextBlock | ImageBlock) -> JsonObject:
    if isinstance(block, TextBlock):
        return {"type": "input_text", "text": block.text}
    url = block.url
    if block.data is not None:
        url = f"data:{block.media_type};base64,{b64encode(block.data).decode()}"
    part: JsonObject = {"type": "input_image", "image_url": url}
    if block.detail is not None:
        part["detail"] = block.detail
    return part

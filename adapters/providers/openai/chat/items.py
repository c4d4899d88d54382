"""A fitted history as the input items of a Responses call. Pure.

The call is stateless (`store` is false), so the history goes along each time. What OpenAI checks most strictly is
that a reasoning item is followed by the very item that it preceded when it was made: so a reasoning item goes back
whole, and the items after it with their own ids; where it can't go back, the ids of the items after it stay behind
too. Ids are never sent alone, for nothing is stored under them; a message that has none of its own gets one made
up, because several servers refuse a message without id and status. Other items that reasoning led to can't do
without theirs, so they stay with the model whose reasoning it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from mimetypes import guess_extension
from typing import assert_never

import msgspec

from adapters.requests.fitted import FittedHistory, Loss
from adapters.requests.media import write_data_url
from adapters.requests.surrogates import mend_text
from bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from bus.values.json import Json, JsonObject
from bus.values.messages import Message, Role

from .response import CUSTOM, REASONING_PART

COMPACTION = "compaction"
SELF_CONTAINED = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_call",
        COMPACTION,
    }
)
"""Items that say all there is to say, and may go back without anything being stored."""

_ANSWERED = re.compile(r"(tool_search|shell|local_shell|apply_patch|computer)_call(_output)?|tool_search_output")
"""Items that come in pairs, a call and its output; one may go back only with the other."""


def write_items(history: FittedHistory, model: str) -> tuple[list[Json], list[Loss]]:
    """The items of a history.

    Args:
        history: The fitted history.
        model: The model that the items go to, as the wire names it.

    Returns:
        The items, and the losses.
    """
    return _Writer(history, model).write()


class _Writer:
    def __init__(self, history: FittedHistory, model: str) -> None:
        self.history = history
        self.provider = history.adapter
        self.model = model
        self.losses: list[Loss] = []
        self.items: list[Json] = []
        self.reasoning: set[Json] = set()  # ids of the items that were written
        self.calls: dict[str, ToolUseBlock] = {}

    def write(self) -> tuple[list[Json], list[Loss]]:
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT if message.plain_text is not None:
                    self.items.append(
                        self._said({"type": "output_text", "text": message.plain_text, "annotations": []})
                    )
                case Role.ASSISTANT:
                    self._assistant(message)
                case Role.TOOL:
                    self.items += [self._result(block) for block in message.content]
                case role:
                    self.items.append({"role": str(role), "content": self._content(message.content)})
        if not self.items:
            self.items.append({"role": "user", "content": ""})  # an empty input is refused
        return self.items, self.losses

    def _assistant(self, message: Message) -> None:
        former: ContentBlock | None = None
        for block in self._pairs(message.content):
            match block:
                case ThinkingBlock():
                    item = _reasoning_item(self.history.own(block.provider_raw))
                    assert item is not None
                    item.setdefault("id", self._made_up_id("rs"))
                    self.reasoning.add(item["id"])
                    self.items.append(item)
                case TextBlock():
                    self._text(block, former)
                case ToolUseBlock():
                    self.calls[block.id] = block
                    self.items.append(self._call(block))
                case OpaqueBlock():
                    self.items.append(block.provider_raw.data)
                case _:
                    raise AssertionError(block)
            former = block

    def _pairs(self, content: Iterable[ContentBlock]) -> list[ContentBlock]:
        """What can go back. Read from the end, for a reasoning item needs the item that follows it."""
        blocks = list(content)
        calls = {_call_key(block) for block in blocks if isinstance(block, OpaqueBlock)}
        kept: list[ContentBlock] = []
        follower: ContentBlock | None = None
        for block in reversed(blocks):
            reason = None
            match block:
                case ThinkingBlock() if self.history.own(block.provider_raw).get("type") == REASONING_PART:
                    continue  # it goes back with its item, which stands with a later block
                case ThinkingBlock():
                    reason = self._unled(block, follower)
                case OpaqueBlock():
                    reason = self._unreplayable(block, calls)
                case RedactedThinkingBlock() | ImageBlock() | AudioBlock() | DocumentBlock() | ToolResultBlock():
                    reason = "this protocol has no such block"
                case TextBlock() | ToolUseBlock():
                    pass
                case _:
                    assert_never(block)
            follower = block if reason is None else None
            if reason is None:
                kept.append(block)
            else:
                self._lose(block, reason)
        return kept[::-1]

    def _unled(self, block: ThinkingBlock, follower: ContentBlock | None) -> str | None:
        """Why a reasoning item can't go back before that block; None if it can."""
        item = _reasoning_item(self.history.own(block.provider_raw))
        if item is None:
            return "it has no encrypted content to be known by"
        led_to = follower is not None and self.history.home(follower) == self.history.home(block)
        if isinstance(follower, TextBlock | ToolUseBlock) and "id" in item:
            led_to = self.history.own(follower.provider_raw).get("after") == item["id"]
        return None if led_to else "the item that it led to is not sent"

    def _unreplayable(self, block: OpaqueBlock, calls: set[tuple[str, Json]]) -> str | None:
        """Why an item can't go back; None if it can."""
        issuer = block.provider_raw.model
        if block.kind != COMPACTION and issuer is not None and issuer != self.model:
            return f"the reasoning that led to it belongs to the model {issuer}"
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

    def _item_id(self, own: JsonObject) -> Json:
        """An item's own id, if the reasoning that led to it is sent as well."""
        return own.get("item_id") if own.get("after") in self.reasoning else None

    def _made_up_id(self, prefix: str) -> str:
        """An id for the next item, the same from send to send. Nobody looks it up, but servers insist on one."""
        return f"{prefix}_{len(self.items):024x}"

    def _text(self, block: TextBlock, former: ContentBlock | None) -> None:
        own = self.history.own(block.provider_raw)
        annotations = own.get("annotations")
        part: JsonObject = {
            "type": "output_text",
            "text": block.text,
            "annotations": annotations if isinstance(annotations, list) else [],
        }
        if own.get("type") == "refusal":
            part = {"type": "refusal", "refusal": block.text}
        named = own.get("item_id")
        last = self.items[-1] if self.items else None
        if (
            named
            and isinstance(former, TextBlock)
            and self.history.own(former.provider_raw).get("item_id") == named
        ):
            assert isinstance(last, dict)
            parts = last["content"]
            assert isinstance(parts, list)
            parts.append(part)
            return
        item = self._said(part, self._item_id(own))
        if "phase" in own:
            item["phase"] = own["phase"]
        self.items.append(item)

    def _said(self, part: JsonObject, item_id: Json = None) -> JsonObject:
        """A reply's message of one part."""
        return {
            "type": "message",
            "role": "assistant",
            "id": item_id or self._made_up_id("msg"),
            "status": "completed",
            "content": [part],
        }

    def _call(self, block: ToolUseBlock) -> JsonObject:
        own = self.history.own(block.provider_raw)
        item: JsonObject = {
            "type": "function_call",
            "call_id": self.history.tool_ids[block.id],
            "name": block.name,
        }
        if own.get("type") == CUSTOM:
            text = block.input.get("input")
            item |= {"type": CUSTOM, "input": text if isinstance(text, str) else ""}
        else:
            item["arguments"] = msgspec.json.encode(block.input).decode()
        if item_id := self._item_id(own):
            item["id"] = item_id
        return item | {name: own[name] for name in ("namespace", "caller") if name in own}

    def _result(self, block: ContentBlock) -> JsonObject:
        assert isinstance(block, ToolResultBlock)
        prefix = "Error: " if block.is_error else ""
        output: Json
        if isinstance(block.content, str):
            output = prefix + block.content
        elif all(isinstance(part, TextBlock) for part in block.content):
            output = prefix + block.text
        else:
            output = [{"type": "input_text", "text": prefix}] if prefix else []
            output += [part for content in block.content for part in self._part(content, block)]
        own = self.history.own(self.calls[block.tool_use_id].provider_raw)
        item: JsonObject = {
            "type": f"{CUSTOM}_output" if own.get("type") == CUSTOM else "function_call_output",
            "call_id": self.history.tool_ids[block.tool_use_id],
            "output": output,
        }
        return item | ({"caller": own["caller"]} if "caller" in own else {})

    def _content(self, blocks: tuple[ContentBlock, ...]) -> Json:
        if len(blocks) == 1 and isinstance(blocks[0], TextBlock):
            return blocks[0].text
        return [part for block in blocks for part in self._part(block, block)]

    def _part(self, block: ContentBlock, home: ContentBlock) -> list[JsonObject]:
        match block:
            case TextBlock():
                return [{"type": "input_text", "text": block.text}]
            case ImageBlock():
                return [_image_part(block)]
            case DocumentBlock():
                return [_file_part(block)]
            case _:
                self._lose(home, "this protocol has no such part")
                return []

    def _lose(self, block: ContentBlock, reason: str) -> None:
        self.losses.append(self.history.loss(block, reason))


def _reasoning_item(data: JsonObject) -> JsonObject | None:
    """A reasoning item as it may go back; None if it has neither encrypted nor plain content."""
    if data.get("type") != "reasoning" or not (data.get("encrypted_content") or data.get("content")):
        return None
    item: JsonObject = {name: value for name, value in data.items() if value is not None}
    item.setdefault("summary", [])
    return item


def _call_key(block: OpaqueBlock) -> tuple[str, Json]:
    call_id = block.provider_raw.data.get("call_id")
    return block.kind, call_id if isinstance(call_id, str) else None


def _image_part(block: ImageBlock) -> JsonObject:
    url = block.url if block.data is None else write_data_url(block.media_type or "", block.data)
    return {"type": "input_image", "image_url": url, "detail": block.detail or "auto"}


def _file_part(block: DocumentBlock) -> JsonObject:
    """A file by address, which brings its name along, or as data, which needs one to be known by."""
    if block.url is not None and not block.url.lower().startswith("data:"):
        return {"type": "input_file", "file_url": block.url}
    url = block.url if block.data is None else write_data_url(block.media_type or "", block.data)
    assert url is not None
    media_type = block.media_type or url[len("data:") :].partition(",")[0].partition(";")[0]
    name = mend_text(block.name or "") or f"document{guess_extension(media_type) or ''}"
    return {"type": "input_file", "filename": name, "file_data": url}

"""A fitted history as input items of the Responses API. Pure.

The call is stateless (`store` is false), so each one has the whole history. OpenAI requires that a reasoning item
is followed by the item that it originally preceded. So a reasoning item is sent back whole, and the items after it
have their own ids. If the reasoning item is not sent, these items have no ids. A message without an id gets a
generated one, because several servers require id and status.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable
from mimetypes import guess_extension
from typing import assert_never

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
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
from callboard.bus.values.messages import Message, Role

from ...requests.content import media_bytes, repair_text, sent_url
from ...requests.history_target import FittedHistory, Loss, encoded
from ...requests.settings import INPUT, add_host_fields, free_text
from .response import CUSTOM, IMAGE_CALL, REASONING_PART

# --- Opaque items in requests ---

COMPACTION = "compaction"
PROGRAM, PROGRAM_OUTPUT = "program", "program_output"
SELF_CONTAINED = frozenset(
    {
        IMAGE_CALL,
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "mcp_list_tools",
        "mcp_call",
        PROGRAM,
        PROGRAM_OUTPUT,
        "additional_tools",
        COMPACTION,
    }
)
"""Items that may be sent back although nothing is stored, because they refer to no other item."""

_PAIRS = {
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
OTHER_HALF = _PAIRS | {output: call for call, output in _PAIRS.items()}
"""Items that form pairs of a call and its output. An item may be sent back only with its other half."""

_IDS = {
    "local_shell_call": ("call_id", "id"),
    "local_shell_call_output": ("call_id", "id"),
    "mcp_approval_request": ("id",),
    "mcp_approval_response": ("approval_request_id",),
}
"""The fields that link the halves of a pair, if not `call_id`."""

NEVER_NULL = {
    IMAGE_CALL: ("error", "svg_usage"),
    "computer_call": ("action", "actions"),
    "mcp_call": ("status",),
}
"""Fields that may be null in a reply but must be absent in a request."""

HALF = "a call can't be sent without its output, nor an output without its call"


class OwnItems:
    def __init__(self, blocks: Iterable[OpaqueBlock], model: str) -> None:
        self._model = model
        ours = [block for block in blocks if self._is_ours(block)]
        self._pairs = {key for block in ours for key in _pair_keys(block)}
        self._programs = [block.provider_raw.data.get("call_id") for block in ours if block.kind == PROGRAM]

    def why_not(self, block: OpaqueBlock) -> str | None:
        if not self._is_ours(block):
            return f"the reasoning that led to it belongs to the model {block.provider_raw.model}"
        if block.kind == PROGRAM_OUTPUT and block.provider_raw.data.get("call_id") not in self._programs:
            return "the program of this item is not sent"
        if block.kind == "additional_tools" and block.provider_raw.data.get("role") != "developer":
            return "only tools of the developer can be sent back"
        if block.kind in SELF_CONTAINED:
            return None
        if block.kind in OTHER_HALF:
            return HALF if self.lacks_half(block) else None
        return "an item of this kind can't be sent back without storage"

    def caller(self, data: JsonObject) -> JsonObject:
        """The `caller` of a call and of its result. A program is omitted if it is not sent."""
        caller = data.get("caller")
        if not isinstance(caller, dict):
            return {}
        sent = caller.get("type") != PROGRAM or caller.get("caller_id") in self._programs
        return {"caller": caller} if sent else {}

    def lacks_half(self, block: OpaqueBlock) -> bool:
        """Whether a block is a call without its output, or an output without its call."""
        other = OTHER_HALF.get(block.kind)
        return other is not None and not any((other, call_id) in self._pairs for _, call_id in _pair_keys(block))

    def _is_ours(self, block: OpaqueBlock) -> bool:
        """Whether an item may be sent to this model.

        Another model's reasoning must not be sent. A compaction can always be sent.
        """
        return block.kind == COMPACTION or block.provider_raw.model in (None, self._model)


def reasoning_item(data: JsonObject) -> JsonObject | None:
    """A reasoning item in the form of a request; None without encrypted and plain content."""
    if data.get("type") != "reasoning" or not (data.get("encrypted_content") or data.get("content")):
        return None
    item: JsonObject = {name: value for name, value in data.items() if value is not None}
    item.setdefault("summary", [])
    return item


def as_input(block: OpaqueBlock) -> JsonObject:
    """Convert an item of a reply to the form of a request, where some fields may be absent but not null."""
    absent = NEVER_NULL.get(block.kind, ())
    item = {
        name: value
        for name, value in block.provider_raw.data.items()
        if name != "created_by" and (value is not None or name not in absent)
    }
    action = item.get("action")
    if block.kind == "web_search_call" and isinstance(action, dict):
        item["action"] = {name: value for name, value in action.items() if value is not None}
    return item


def _pair_keys(block: OpaqueBlock) -> list[tuple[str, str | None]]:
    """The ids that link a call and its output, each with its kind. A search by the server has no id."""
    data = block.provider_raw.data
    ids = [data[name] for name in _IDS.get(block.kind, ("call_id",)) if name in data]
    return [(block.kind, value) for value in ids or [None] if value is None or isinstance(value, str)]


def _plain(text: str, place: int) -> JsonObject:
    """A plain message as an item. Even places are the user's, odd places the model's."""
    if place % 2:
        return _output_text({"type": "output_text", "text": text, "annotations": []}, place)
    return {"role": "user", "content": text}


class ItemWriter:
    def __init__(self, history: FittedHistory, model: str, free_form: Collection[str]) -> None:
        self.history = history
        self.losses: list[Loss] = []
        self.items, done = encoded(history, "responses", _plain)
        self.encoded = done - len(self.items)
        """The difference between the number of items and the length of `items`: the first element of `items` is
        the JSON of several items.
        """
        for place, text in enumerate(history.plain[done:], done):
            self.items.append(_plain(text, place))
        self.reasoning: list[Json] = []  # ids of the written items
        self.free_form = free_form
        # Each call, and whether it was sent as a free-form call.
        self.calls: dict[str, tuple[ToolUseBlock, bool]] = {}
        self.rest = history.messages[len(history.plain) :]
        blocks = [block for message in self.rest if message.plain_text is None for block in message.content]
        self.own_items = OwnItems([block for block in blocks if isinstance(block, OpaqueBlock)], model)

    def write(self) -> list[Json]:
        for message in self.rest:
            text = message.plain_text
            match message.role:
                case Role.ASSISTANT if text is not None:
                    part: JsonObject = {"type": "output_text", "text": text, "annotations": []}
                    self.items.append(_output_text(part, self._place))
                case Role.ASSISTANT:
                    self._assistant(message)
                case Role.TOOL:
                    self.items += [self._result(block) for block in message.content]
                case role if text is not None:
                    self.items.append({"role": str(role), "content": text})
                case role if any(isinstance(block, OpaqueBlock) for block in message.content):
                    self._mixed(str(role), message.content)
                case role:
                    self.items.append({"role": str(role), "content": self._content(message.content)})
        if not self.items:
            self.items.append({"role": "user", "content": ""})  # an empty input is refused
        return self.items

    @property
    def _place(self) -> int:
        """The index of the next item in the request."""
        return len(self.items) + self.encoded

    def _assistant(self, message: Message) -> None:
        former: ContentBlock | None = None
        for block in self._pairs(message.content):
            match block:
                case ThinkingBlock():
                    item = reasoning_item(self.history.own(block.provider_raw))
                    assert item is not None
                    item.setdefault("id", _made_up_id("rs", self._place))
                    self.reasoning.append(item["id"])
                    self.items.append(item)
                case TextBlock():
                    self._text(block, former)
                case ToolUseBlock():
                    item = self._call(block)
                    self.calls[block.id] = block, item["type"] == CUSTOM
                    self.items.append(item)
                case OpaqueBlock():
                    self.items.append(as_input(block))
                case ImageBlock():
                    self.items.append(self._own_image(block))
                case _:
                    raise AssertionError(block)
            former = block

    def _pairs(self, content: Iterable[ContentBlock]) -> list[ContentBlock]:
        """The blocks that can be sent back.

        Blocks are read from the end, because a reasoning item needs the item after it.
        """
        blocks = list(content)
        reversed_blocks: list[ContentBlock] = []
        follower: ContentBlock | None = None
        for block in reversed(blocks):
            reason = None
            match block:
                case ThinkingBlock() if self.history.own(block.provider_raw).get("type") == REASONING_PART:
                    continue  # the reasoning item is in a later block and is sent from there
                case ThinkingBlock():
                    reason = self._reason_to_omit(block, follower)
                case OpaqueBlock():
                    reason = self.own_items.why_not(block)
                case RedactedThinkingBlock() | AudioBlock() | DocumentBlock() | ToolResultBlock():
                    reason = "this protocol has no such block"
                case ImageBlock():
                    called = self.history.own(block.provider_raw).get("type") == IMAGE_CALL
                    reason = None if called and block.data is not None else "no call of the model produced it"
                case TextBlock() | ToolUseBlock():
                    pass
                case _:
                    assert_never(block)
            follower = block if reason is None else None
            if reason is None:
                reversed_blocks.append(block)
            else:
                self._lose(block, reason)
        return reversed_blocks[::-1]

    def _own_image(self, block: ImageBlock) -> JsonObject:
        assert block.data is not None
        absent = NEVER_NULL[IMAGE_CALL]
        fields = self.history.own(block.provider_raw).items()
        return {name: value for name, value in fields if value is not None or name not in absent} | {
            "result": b64encode(block.data).decode()
        }

    def _reason_to_omit(self, block: ThinkingBlock, follower: ContentBlock | None) -> str | None:
        """The reason why a reasoning item can't be sent back before a block; None if it can."""
        item = reasoning_item(self.history.own(block.provider_raw))
        if item is None:
            return "it has no encrypted content to identify it"
        led_to = follower is not None and self.history.home(follower) == self.history.home(block)
        if isinstance(follower, TextBlock | ToolUseBlock) and "id" in item:
            led_to = self.history.own(follower.provider_raw).get("after") == item["id"]
        return None if led_to else "the item that follows it is not sent"

    def _item_id(self, data: JsonObject) -> Json:
        """The item's own id, if the reasoning before the item is sent, too."""
        return data.get("item_id") if data.get("after") in self.reasoning else None

    def _text(self, block: TextBlock, former: ContentBlock | None) -> None:
        data = self.history.own(block.provider_raw)
        annotations = data.get("annotations")
        part: JsonObject = {
            "type": "output_text",
            "text": block.text,
            "annotations": annotations if isinstance(annotations, list) else [],
        }
        if data.get("type") == "refusal":
            part = {"type": "refusal", "refusal": block.text}
        named = data.get("item_id")
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
        item = _output_text(part, self._place, self._item_id(data))
        if "phase" in data:
            item["phase"] = data["phase"]
        self.items.append(item)

    def _call(self, block: ToolUseBlock) -> JsonObject:
        data = self.history.own(block.provider_raw)
        item: JsonObject = {
            "type": "function_call",
            "call_id": self.history.tool_ids[block.id],
            "name": block.name,
        }
        if data.get("type") == CUSTOM or (block.name in self.free_form and free_text(block) is not None):
            item |= {"type": CUSTOM, INPUT: free_text(block) or ""}
        else:
            item["arguments"] = msgspec.json.encode(block.input).decode()
        if item_id := self._item_id(data):
            item["id"] = item_id
        item |= {name: data[name] for name in ("namespace", "async") if name in data}
        return item | self.own_items.caller(data)

    def _result(self, block: ContentBlock) -> JsonObject:
        assert isinstance(block, ToolResultBlock)
        prefix = "Error: " if block.is_error else ""
        output: Json
        if isinstance(block.content, str):
            output = prefix + block.content
        elif all(
            isinstance(part, TextBlock) and not self.history.own(part.provider_raw) for part in block.content
        ):
            output = prefix + block.text
        else:
            output = [{"type": "input_text", "text": prefix}] if prefix else []
            output += [part for content in block.content for part in self._part(content, block)]
        call, free_form = self.calls[block.tool_use_id]
        call_data = self.history.own(call.provider_raw)
        item: JsonObject = {
            "type": f"{CUSTOM}_output" if free_form else "function_call_output",
            "call_id": self.history.tool_ids[block.tool_use_id],
            "output": output,
        }
        return add_host_fields(item | self.own_items.caller(call_data), self.history.own(block.provider_raw))

    def _mixed(self, role: str, blocks: tuple[ContentBlock, ...]) -> None:
        """Write a user message that contains the provider's own items, as messages and items in order."""
        pending: list[ContentBlock] = []
        for block in (*blocks, None):
            if block is not None and not _is_item(block):
                pending.append(block)
                continue
            if pending:
                self.items.append({"role": role, "content": self._content(tuple(pending))})
                pending = []
            if isinstance(block, OpaqueBlock):
                if self.own_items.lacks_half(block):
                    self._lose(block, HALF)
                else:
                    self.items.append(block.provider_raw.data)

    def _content(self, blocks: tuple[ContentBlock, ...]) -> Json:
        first = blocks[0] if len(blocks) == 1 else None
        if isinstance(first, TextBlock) and not self.history.own(first.provider_raw):
            return first.text
        return [part for block in blocks for part in self._part(block, block)]

    def _part(self, block: ContentBlock, home: ContentBlock) -> list[JsonObject]:
        match block:
            case TextBlock():
                part: JsonObject = {"type": "input_text", "text": block.text}
            case ImageBlock():
                part = {"type": "input_image", "image_url": sent_url(block), "detail": block.detail or "auto"}
            case DocumentBlock():
                part = _file_part(block)
            case OpaqueBlock():
                return [block.provider_raw.data]
            case _:
                self._lose(home, "this protocol has no such part")
                return []
        return [add_host_fields(part, self.history.own(block.provider_raw))]

    def _lose(self, block: ContentBlock, reason: str) -> None:
        self.losses.append(self.history.loss(block, reason))


def _made_up_id(prefix: str, place: int) -> str:
    """A generated id for an item, because servers require one. The id of an item is the same in every request."""
    return f"{prefix}_{place:024x}"


def _output_text(part: JsonObject, place: int, item_id: Json = None) -> JsonObject:
    return {
        "type": "message",
        "role": "assistant",
        "id": item_id or _made_up_id("msg", place),
        "status": "completed",
        "content": [part],
    }


def _is_item(block: ContentBlock) -> bool:
    return isinstance(block, OpaqueBlock) and not block.kind.startswith("input_")


def _file_part(block: DocumentBlock) -> JsonObject:
    if block.url is not None and not block.url.lower().startswith("data:"):
        return {"type": "input_file", "file_url": block.url}
    found = media_bytes(block)
    media_type = found[0] if found is not None else block.media_type or ""
    name = repair_text(block.name or "") or f"document{guess_extension(media_type) or ''}"
    return {"type": "input_file", "filename": name, "file_data": sent_url(block)}

"""What goes back of items that only OpenAI can read, and in which form. Pure.

* Some say all there is to say. Others come in pairs, a call and its output; one may go back only with the other.
* Those that reasoning led to can't do without its ids, so they stay with the model whose reasoning it was.
* Of what a program did nothing goes back without the program.
"""

from __future__ import annotations

from collections.abc import Iterable

from callboard.bus.values.content import OpaqueBlock
from callboard.bus.values.json import JsonObject

from .response import IMAGE_CALL

COMPACTION = "compaction"
PROGRAM, PROGRAM_OUTPUT = "program", "program_output"
_SELF_CONTAINED = frozenset(
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
"""Items that say all there is to say, and may go back without anything being stored."""

_PAIRS = {
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
_OTHER_HALF = _PAIRS | {output: call for call, output in _PAIRS.items()}
"""Items that come in pairs, a call and its output; one may go back only with the other."""

_IDS = {
    "local_shell_call": ("call_id", "id"),
    "local_shell_call_output": ("call_id", "id"),
    "mcp_approval_request": ("id",),
    "mcp_approval_response": ("approval_request_id",),
}
"""The fields by which the halves of a pair know each other, where it isn't `call_id`."""

NEVER_NULL = {
    IMAGE_CALL: ("error", "svg_usage"),
    "computer_call": ("action", "actions"),
    "mcp_call": ("status",),
}
"""Fields that replies may say to be null, and requests only leave out."""

HALF = "a call can't go back without its output, nor an output without its call"


class OwnItems:
    """Which of a history's items may go back to a model.

    Args:
        blocks: All blocks of the history that only their provider can read.
        model: The model, as the wire names it.
    """

    def __init__(self, blocks: Iterable[OpaqueBlock], model: str) -> None:
        self._model = model
        ours = [block for block in blocks if self._is_ours(block)]
        self._pairs = {key for block in ours for key in _pair_keys(block)}
        self._programs = [block.provider_raw.data.get("call_id") for block in ours if block.kind == PROGRAM]

    def why_not(self, block: OpaqueBlock) -> str | None:
        """Why an item can't go back; None if it can."""
        if not self._is_ours(block):
            return f"the reasoning that led to it belongs to the model {block.provider_raw.model}"
        if block.kind == PROGRAM_OUTPUT and block.provider_raw.data.get("call_id") not in self._programs:
            return "the program that it is of is not sent"
        if block.kind == "additional_tools" and block.provider_raw.data.get("role") != "developer":
            return "only a developer's tools can go back"
        if block.kind in _SELF_CONTAINED:
            return None
        if block.kind in _OTHER_HALF:
            return HALF if self.lacks_half(block) else None
        return "an item of this kind can't go back while nothing is stored"

    def caller(self, own: JsonObject) -> JsonObject:
        """The caller of a call and of its result, unless it is a program that is not sent."""
        caller = own.get("caller")
        if not isinstance(caller, dict):
            return {}
        sent = caller.get("type") != PROGRAM or caller.get("caller_id") in self._programs
        return {"caller": caller} if sent else {}

    def lacks_half(self, block: OpaqueBlock) -> bool:
        """Whether a block is a call whose output isn't there, or an output without its call."""
        other = _OTHER_HALF.get(block.kind)
        return other is not None and not any((other, call_id) in self._pairs for _, call_id in _pair_keys(block))

    def _is_ours(self, block: OpaqueBlock) -> bool:
        """Whether no other model's reasoning led to an item. A compaction is for all models."""
        return block.kind == COMPACTION or block.provider_raw.model in (None, self._model)


def reasoning_item(data: JsonObject) -> JsonObject | None:
    """A reasoning item as it may go back; None if it has neither encrypted nor plain content."""
    if data.get("type") != "reasoning" or not (data.get("encrypted_content") or data.get("content")):
        return None
    item: JsonObject = {name: value for name, value in data.items() if value is not None}
    item.setdefault("summary", [])
    return item


def as_input(block: OpaqueBlock) -> JsonObject:
    """An item of a reply as a request takes it: some of its fields may be absent there, but not null."""
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
    """What the other half of a call and its output may know this half by. A search of the server's has no id."""
    data = block.provider_raw.data
    told = [data[name] for name in _IDS.get(block.kind, ("call_id",)) if name in data]
    return [(block.kind, value) for value in told or [None] if value is None or isinstance(value, str)]

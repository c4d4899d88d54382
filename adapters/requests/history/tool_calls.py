"""The calls of tools in a history, and their results, as a target gets them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import msgspec

from callboard.bus.values.content import ContentBlock, ResultPart, TextBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role

from ..fitted import Home, Target, left_out
from ..surrogates import mend_object
from .acceptance import refusal_in_result
from .losses import Losses

NOT_EXECUTED = "This tool call was interrupted and not executed."
NO_RESULT = "This tool call was interrupted and has no result; it may have been carried out, in part or in full."
"""Of a call that was whole: whoever ran it, such as a process that died, has not said what became of it."""


class FittedCalls:
    """The calls that were fitted so far.

    Args:
        messages: The history.
        target: Where it goes.
        losses: Told of what is lost.
        homes: Gets the origin of each result.
    """

    def __init__(self, messages: Sequence[Message], target: Target, losses: Losses, homes: list[Home]) -> None:
        self.ids: dict[str, str] = {}
        """The ids on the wire, by our ids."""
        self.names: dict[str, str] = {}
        """The names of the tools, by our ids of the calls."""
        self._messages = messages
        self._target = target
        self._losses = losses
        self._homes = homes
        self._taken: set[str] = set()  # ids on the wire

    def fit(self, message: Message, block: ToolUseBlock) -> ToolUseBlock:
        """A call, which has its id and a legal name from now on."""
        changed: dict[str, object] = {}
        name = _legal_name(block.name)
        if name != block.name:
            self._losses.note(message, block, "its name is no legal one and was changed")
            changed["name"] = name
        if block.raw_arguments and not block.input:
            self._losses.note(message, block, "its arguments are no JSON object; it was sent without any")
            changed["raw_arguments"] = None
        mended = mend_object(block.input)
        if mended is not block.input:
            self._losses.note(message, block, "half a surrogate pair in its arguments was replaced")
            changed["input"] = mended
        wire_id = self._wire_id(block)
        self._taken.add(wire_id)
        self.ids[block.id] = wire_id
        self.names[block.id] = name
        return msgspec.structs.replace(block, **changed) if changed else block

    def _wire_id(self, block: ToolUseBlock) -> str:
        rule = self._target.tool_ids
        raw = block.provider_raw
        if raw is not None and raw.provider == self._target.provider:
            own = raw.data.get("id")
            if isinstance(own, str) and own and own not in self._taken:
                return own
        wire_id = block.id if rule.allows(block.id) else rule.derive(block.id)
        number = 0
        while wire_id in self._taken:
            number += 1
            wire_id = rule.derive(f"{block.id} {number}")
        return wire_id

    def answer(self, call: ToolUseBlock) -> ToolResultBlock:
        """The result of a call; one that says so if there is none."""
        if call.id not in self._results:
            return ToolResultBlock(call.id, NOT_EXECUTED if call.incomplete else NO_RESULT, is_error=True)
        message, result = self._results[call.id]
        if isinstance(result.content, str):
            text = self._losses.mended(message, result, result.content)
            answer = result if text is result.content else msgspec.structs.replace(result, content=text)
            self._homes.append((message.id or "", (answer,)))
            return answer
        kept: list[ResultPart] = []
        refused: list[ContentBlock] = []
        for block in result.content:
            if isinstance(block, TextBlock):
                kept.append(self._losses.mended_block(message, block))
            elif reason := refusal_in_result(block, self._target):
                self._losses.note(message, block, reason)
                refused.append(block)
            else:
                kept.append(block)
        answer = msgspec.structs.replace(result, content=tuple(kept or left_out(refused)))
        self._homes.append((message.id or "", (answer, *kept)))
        return answer

    def report_dropped(self, message: Message) -> None:
        """Note the results of a message that answer no call, or none that has no other result."""
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                if block.tool_use_id not in self._called:
                    self._losses.note(message, block, "no message has the call that it answers")
                elif self._results[block.tool_use_id][1] is not block:
                    self._losses.note(message, block, "the call that it answers has a result already")

    @cached_property
    def _called(self) -> set[str]:
        """Our ids of all calls."""
        return {block.id for message in self._messages for block in message.tool_uses}

    @cached_property
    def _results(self) -> dict[str, tuple[Message, ToolResultBlock]]:
        """The first result of each call, with its message, by our ids."""
        results: dict[str, tuple[Message, ToolResultBlock]] = {}
        for message in self._messages:
            if message.role is not Role.TOOL:  # others can't have any
                continue
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    results.setdefault(block.tool_use_id, (message, block))
        return results


def _legal_name(name: str) -> str:
    """A tool's name in a form that every provider takes. Only a model can make up a name in another form."""
    legal = re.sub("[^A-Za-z0-9_-]", "_", name)[:64]
    return legal if re.match("[A-Za-z_]", legal) else f"_{legal}"[:64]

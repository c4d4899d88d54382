"""Fitting a request to a model: refused reasoning, and replies that follow a schema.

Signed reasoning can be bound to everything before it: system prompt, tools, earlier messages. If these change, the
provider refuses the request. It is then sent again without the reasoning and without signatures (see
`adapters.http.repair`). The refusal is remembered, so that later turns don't pay for another.

A model that accepts schemas always gets the schema. A model that can be forced to call a tool gets a tool with the
reply as its arguments, unless the caller has tools or wants reasoning. All others get the schema in the system
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from callboard.adapters import (
    AdapterCapabilities,
    CallWarning,
    CanonicalResponse,
    ContentBlock,
    Message,
    StopReason,
    TextBlock,
    ToolChoice,
    ToolDefinition,
    ToolUseBlock,
)
from callboard.adapters.requests.content import without_reasoning
from callboard.adapters.requests.schemas import instruction
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import JsonObject

from ..models.entries import ModelInput, joined


class RefusedReasoning:
    """The ids of the messages with refused reasoning, by provider. At most as large as the history."""

    def __init__(self) -> None:
        self._refused: dict[str, set[str]] = {}

    def note(self, provider: str, sent: Sequence[Message], warnings: Sequence[CallWarning]) -> None:
        """Take in the end of a call."""
        if any(warning.code == WarningCode.REASONING_REFUSED for warning in warnings):
            self._refused.setdefault(provider, set()).update(
                message.id
                for message in sent
                if message.id and without_reasoning(message, provider) is not message
            )

    def without(self, provider: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        refused = self._refused.get(provider)
        if not refused:
            return messages
        return tuple(
            without_reasoning(message, provider) if message.id in refused else message for message in messages
        )

    def copy(self) -> RefusedReasoning:
        """A copy for a fork, which then learns by itself."""
        other = RefusedReasoning()
        other._refused = {provider: set(ids) for provider, ids in self._refused.items()}
        return other


# --- Replies that follow a schema ---


SchemaMode: TypeAlias = Literal["native", "auto"]
"""``native``: by the model itself, or not at all. ``auto``: by a tool or an instruction if need be."""

ANSWER_TOOL = "answer"


def hold_to_schema(
    given: ModelInput,
    schema: JsonObject | None,
    mode: SchemaMode,
    capabilities: AdapterCapabilities,
    *,
    choice: ToolChoice | None,
    reasons: bool,
) -> ModelInput:
    """The input of a model whose reply must follow a schema."""
    if schema is None or mode == "native" or capabilities.supports_structured_output:
        return msgspec.structs.replace(given, schema=schema) if schema is not None else given
    if _can_be_forced(capabilities) and not given.tools and choice is None and not reasons:
        tool = ToolDefinition(ANSWER_TOOL, "Give the answer.", schema)
        return msgspec.structs.replace(
            given,
            tools=(tool,),
            forced=ToolChoice("named", ANSWER_TOOL),
            warnings=(
                *given.warnings,
                _warning(WarningCode.SCHEMA_AS_TOOL, "the schema was sent as the arguments of a tool"),
            ),
        )
    return msgspec.structs.replace(
        given,
        system_prompt=joined(given.system_prompt, instruction(schema, with_tools=bool(given.tools))),
        warnings=(
            *given.warnings,
            _warning(WarningCode.SCHEMA_AS_INSTRUCTION, "the schema was sent in the system prompt"),
        ),
    )


def _can_be_forced(capabilities: AdapterCapabilities) -> bool:
    return capabilities.supports_tools and capabilities.supports_tool_choice


def _warning(code: WarningCode, what: str) -> CallWarning:
    return CallWarning(code, f"the model does not support output schemas; {what}")


def answer_as_text(response: CanonicalResponse) -> CanonicalResponse:
    """The response with the text that its forced tool call stands for."""
    content: list[ContentBlock] = []
    for block in response.content:
        if isinstance(block, ToolUseBlock) and block.name == ANSWER_TOOL:
            content.append(TextBlock(arguments_text(block)))
        elif not isinstance(block, TextBlock):  # Text next to the call is not the answer.
            content.append(block)
    if not any(isinstance(block, TextBlock) for block in content):
        return response
    stop = StopReason.END_TURN if response.stop_reason is StopReason.TOOL_USE else response.stop_reason
    return msgspec.structs.replace(response, content=tuple(content), stop_reason=stop)


def arguments_text(call: ToolUseBlock) -> str:
    """The arguments of a call as the model wrote them, or else written again."""
    if call.raw_arguments is not None:
        return call.raw_arguments
    return "" if call.incomplete else msgspec.json.encode(call.input).decode()

"""How a model is held to a schema: by itself, by a tool that it must call, or by an instruction. Pure.

A model that takes schemas itself gets the schema, always. Of the others, one that can be made to call a tool gets
a tool whose arguments are the reply; unless the caller has tools of its own, which the model could then no longer
call, or wants reasoning, which goes with no forced tool. What is left is told the schema in the system text.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from adapters import (
    AdapterCapabilities,
    CallWarning,
    CanonicalResponse,
    ContentBlock,
    StopReason,
    TextBlock,
    ToolChoice,
    ToolDefinition,
    ToolUseBlock,
)
from adapters.schemas.sanitizer import instruction
from bus.values.json import JsonObject
from bus.values.warning_codes import WarningCode

from ...models.habits import ModelInput, joined

SchemaMode: TypeAlias = Literal["native", "auto"]
"""``native``: by the model itself, or not at all. ``auto``: by what it has instead."""

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
    """What is sent to a model so that its reply follows the schema. choice: of the caller's tools."""
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
                _warning(WarningCode.SCHEMA_AS_TOOL, "it was asked for as a tool's arguments"),
            ),
        )
    return msgspec.structs.replace(
        given,
        system_prompt=joined(given.system_prompt, instruction(schema, with_tools=bool(given.tools))),
        warnings=(
            *given.warnings,
            _warning(WarningCode.SCHEMA_AS_INSTRUCTION, "it was told the schema in the system text"),
        ),
    )


def _can_be_forced(capabilities: AdapterCapabilities) -> bool:
    return capabilities.supports_tools and capabilities.supports_tool_choice


def _warning(code: WarningCode, what: str) -> CallWarning:
    return CallWarning(code, f"the model takes no output schema; {what}")


def answer_as_text(response: CanonicalResponse) -> CanonicalResponse:
    """The response with its forced tool call as the text that it stands for."""
    content: list[ContentBlock] = []
    for block in response.content:
        if isinstance(block, ToolUseBlock) and block.name == ANSWER_TOOL:
            content.append(TextBlock(arguments_text(block)))
        elif not isinstance(block, TextBlock):  # what it says beside the call is not the answer
            content.append(block)
    if not any(isinstance(block, TextBlock) for block in content):
        return response
    stop = StopReason.END_TURN if response.stop_reason is StopReason.TOOL_USE else response.stop_reason
    return msgspec.structs.replace(response, content=tuple(content), stop_reason=stop)


def arguments_text(call: ToolUseBlock) -> str:
    """A call's arguments as the model wrote them, or anew."""
    if call.raw_arguments is not None:
        return call.raw_arguments
    return "" if call.incomplete else msgspec.json.encode(call.input).decode()

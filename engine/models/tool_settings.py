"""The changes in a request for the sake of one provider or model, as models.yaml wants them.

Some models need to be told more, take fewer tools, or call none unless they must. All of this is off unless
models.yaml says so. Pure functions of the configuration and the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from callboard.adapters import AdapterCapabilities, CallWarning, Message, Role, ToolChoice, ToolDefinition
from callboard.bus.values.json import JsonObject
from callboard.bus.values.warning_codes import WarningCode

S = TypeVar("S", bound=msgspec.Struct)


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a model is given tools; None leaves things as they are."""

    strict: bool | None = None
    """Whether tools are strict that don't say it themselves."""
    max: int | None = None
    """The largest number of tools in a request. Tools of `core` go first, then those that the conversation has
    used, then the rest in their order."""
    core: tuple[str, ...] | None = None
    """The names of the tools that go first."""
    parallel: bool | None = None
    """Whether several calls at once are asked for where the caller doesn't say."""
    force_first_turn: bool | None = None
    """Whether the first reply of a conversation must call a tool, if there are any."""


NO_TOOL_SETTINGS = ToolSettings()


class ModelInput(msgspec.Struct, frozen=True):
    """The part of a turn that depends on the model."""

    tools: tuple[ToolDefinition, ...]
    """The tools."""
    system_prompt: str | None
    """The system text."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about tools that the model can't be given as they are."""
    schema: JsonObject | None = None
    """The schema that the model itself must follow."""
    forced: ToolChoice | None = None
    """The tool choice of a reply by a schema that is asked for as a tool call."""


def over(upper: S, lower: S) -> S:
    """Settings whose open fields are filled from the settings below."""
    said = {name: value for name in upper.__struct_fields__ if (value := getattr(upper, name)) is not None}
    return msgspec.structs.replace(lower, **said)


def model_input(
    settings: ToolSettings,
    addendum: str | None,
    *,
    tools: Sequence[ToolDefinition],
    system_prompt: str | None,
    messages: Sequence[Message],
    choice: ToolChoice | None,
) -> ModelInput:
    """The tools and the system text for a model.

    Args:
        settings: The model's settings of tools.
        addendum: The text to add to the system text.
        tools: The tools of the turn.
        system_prompt: The system text of the turn.
        messages: The messages of the turn.
        choice: The caller's tool choice. Its tool is never left out.
    """
    given = tuple(tools)
    warnings: tuple[CallWarning, ...] = ()
    if settings.max is not None and len(given) > settings.max:
        given, warnings = _limited(given, settings.max, settings.core or (), messages, choice)
    if settings.strict is not None:
        given = tuple(
            msgspec.structs.replace(tool, strict=settings.strict) if tool.strict is None else tool
            for tool in given
        )
    return ModelInput(given, joined(system_prompt, addendum), warnings)


def joined(system_prompt: str | None, addendum: str | None) -> str | None:
    """A system text, together with a text that the model needs to be told besides."""
    if not addendum:
        return system_prompt or None
    return f"{system_prompt}\n\n{addendum}" if system_prompt else addendum


def _limited(
    tools: tuple[ToolDefinition, ...],
    limit: int,
    core: Sequence[str],
    messages: Sequence[Message],
    choice: ToolChoice | None,
) -> tuple[tuple[ToolDefinition, ...], tuple[CallWarning, ...]]:
    """As many as may be, in their own order, so that what providers cache stays the same."""
    chosen = choice.tool_name if choice is not None else None
    used = {call.name for message in messages for call in message.tool_uses}

    def tier(tool: ToolDefinition) -> int:
        if tool.name == chosen:
            return 0
        if tool.name in core:
            return 1
        return 2 if tool.name in used else 3

    kept = {tool.name for tool in sorted(tools, key=tier)[:limit]}
    left_out = ", ".join(tool.name for tool in tools if tool.name not in kept)
    text = f"{len(tools)} tools for a limit of {limit}; left out: {left_out}"
    return tuple(tool for tool in tools if tool.name in kept), (CallWarning(WarningCode.TOOLS_LEFT_OUT, text),)


def first_choice(
    settings: ToolSettings,
    choice: ToolChoice | None,
    *,
    tools: Sequence[ToolDefinition],
    messages: Sequence[Message],
    capabilities: AdapterCapabilities,
) -> ToolChoice | None:
    """The choice of tools for the first call of a turn: the caller's, or the one that is forced."""
    if choice is not None or not settings.force_first_turn or not tools or not capabilities.supports_tool_choice:
        return choice
    begun = any(message.role is Role.ASSISTANT for message in messages)
    return None if begun else ToolChoice("required")


def parallel_calls(
    settings: ToolSettings,
    asked: bool | None,
    *,
    tools: Sequence[ToolDefinition],
    capabilities: AdapterCapabilities,
) -> bool | None:
    """What to say about parallel calls: the caller's word, else the configuration's if the model can do it."""
    if asked is not None or settings.parallel is None or not tools:
        return asked
    return settings.parallel if capabilities.supports_parallel_tool_calls else None

"""The check before anything is sent: whether a model can do what a turn asks.

Everything that the turn itself asks must be supported. Older turns are fitted to the model, with a warning for
each loss. The limits of a model that isn't listed are unknown, so they are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from callboard.adapters import (
    AdapterCapabilities,
    CallWarning,
    CapabilityError,
    Message,
    ToolChoice,
    ToolDefinition,
    UnsupportedToolChoiceError,
)
from callboard.adapters.refusals.required_capabilities import FORCING, media_lacks
from callboard.adapters.usage.estimate import at_most
from callboard.bus import PromptTooLongError
from callboard.bus.values.json import JsonObject
from callboard.bus.values.warning_codes import WarningCode

from ..conversation.requests import SchemaMode
from .model_choice import Requirements


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn asks of any model that it goes to. All fields but the first are options of the turn."""

    new: tuple[Message, ...]
    """The messages that no model has answered yet."""
    tools: Sequence[ToolDefinition] = ()
    """The tools of the conversation."""
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output_schema: JsonObject | None = None
    schema_mode: SchemaMode = "native"
    reasoning_effort: str | None = None
    max_output_tokens: int | None = None
    """The largest number of output tokens; None is the model's own."""
    requires: tuple[Requirements, ...] = ()
    """The requirements of the session, the turn and the choice."""


def check(
    asked: Asked,
    capabilities: AdapterCapabilities,
    *,
    model: str,
    provider: str,
    listed: bool,
    estimated_tokens: int,
    max_output_tokens: int,
) -> tuple[CallWarning, ...]:
    """Check whether a model can do what a turn asks.

    Args:
        asked: What the turn asks.
        capabilities: The model's capabilities.
        model: The model as ``provider:name``.
        provider: The provider.
        listed: Whether the model stands in models.yaml.
        estimated_tokens: The estimate of the prompt.
        max_output_tokens: The largest number of output tokens.

    Returns:
        Warnings about things that may go wrong all the same.

    Raises:
        CapabilityError: The model can't do something that is asked.
        PromptTooLongError: The prompt surely exceeds the model's window.
    """
    check_tool_choice(asked)
    lack = next(_lacks(asked, capabilities, listed=listed), None)
    if lack is None and listed and max_output_tokens > capabilities.max_output_tokens:
        lack = f"gives at most {capabilities.max_output_tokens} output tokens, not {max_output_tokens}"
    if lack is not None:
        error = CapabilityError(f"{model} {lack}", provider=provider)
        error.add_note(f"If that is wrong, set models.{model}.capabilities in models.yaml.")
        raise error
    window = capabilities.max_context_tokens
    if not listed or estimated_tokens <= window:
        return ()
    size = f"about {estimated_tokens} tokens for a window of {window}"
    if estimated_tokens > at_most(window):
        raise PromptTooLongError(f"the prompt is too long for {model}: {size}", provider=provider)
    return (CallWarning(WarningCode.PROMPT_NEAR_WINDOW, f"the prompt may be too long for {model}: {size}"),)


def check_tool_choice(asked: Asked) -> None:
    """Check whether the choice of tools makes sense for any model.

    Raises:
        UnsupportedToolChoiceError: There are no tools to choose from, or there is no tool of that name.
    """
    choice = asked.tool_choice
    if choice is None:
        return
    if choice.mode in ("required", "named") and not asked.tools:
        raise UnsupportedToolChoiceError(f"tool choice {choice.mode!r} without tools")
    if choice.tool_name is not None and choice.tool_name not in {tool.name for tool in asked.tools}:
        raise UnsupportedToolChoiceError(f"there is no tool named {choice.tool_name!r} to choose")


def _lacks(asked: Asked, capabilities: AdapterCapabilities, *, listed: bool) -> Iterator[str]:
    for message in asked.new:
        yield from media_lacks(message, capabilities)
    if asked.tools and not capabilities.supports_tools:
        yield "can't call tools"
    if (
        asked.tool_choice is not None
        and asked.tool_choice.mode in FORCING
        and not capabilities.supports_tool_choice
    ):
        yield "can't be made to call a tool"
    if asked.tools and asked.parallel_tool_calls and not capabilities.supports_parallel_tool_calls:
        yield "can't call tools in parallel"
    held = asked.output_schema is None or capabilities.supports_structured_output
    if not held and asked.schema_mode == "native":
        yield "can't be held to a schema"
    if asked.reasoning_effort not in (None, "none") and not capabilities.supports_thinking and listed:
        yield f"has no reasoning to put effort {asked.reasoning_effort!r} into"
    for requirements in asked.requires:
        unmet = requirements.unmet(capabilities)
        if unmet is not None:
            yield unmet

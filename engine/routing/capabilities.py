"""Whether a model can do what a request asks, found out before anything is sent.

What the turn itself asks must be supported; older turns are fitted to the model, with a loss report. Limits of a
model that isn't listed are not known, so they are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from adapters import (
    AdapterCapabilities,
    CallWarning,
    CapabilityError,
    Message,
    ToolChoice,
    ToolDefinition,
    UnsupportedToolChoiceError,
)
from adapters.refusals.demands import FORCING, media_lacks
from adapters.usage.estimate import at_most
from bus import PromptTooLongError
from bus.values.json import JsonObject
from bus.values.warning_codes import WarningCode

from ..conversation.requests.schema_mode import SchemaMode
from .choice import Requirements


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn asks of whatever model it goes to. new: what it says. max_output_tokens: None: the model's."""

    new: tuple[Message, ...]
    tools: Sequence[ToolDefinition] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output_schema: JsonObject | None = None
    schema_mode: SchemaMode = "native"
    reasoning_effort: str | None = None
    max_output_tokens: int | None = None
    requires: tuple[Requirements, ...] = ()


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
    """What may go wrong all the same. Raises CapabilityError."""
    check_tool_choice(asked)
    lack = next(_lacks(asked, capabilities, listed=listed), None)
    if lack is None and listed and max_output_tokens > capabilities.max_output_tokens:
        lack = f"gives at most {capabilities.max_output_tokens} output tokens, not {max_output_tokens}"
    if lack is not None:
        raise CapabilityError(f"{model} {lack}", provider=provider)
    window = capabilities.max_context_tokens
    if not listed or estimated_tokens <= window:
        return ()
    size = f"about {estimated_tokens} tokens for a window of {window}"
    if estimated_tokens > at_most(window):
        raise PromptTooLongError(f"the prompt is too long for {model}: {size}", provider=provider)
    return (CallWarning(WarningCode.PROMPT_NEAR_WINDOW, f"the prompt may be too long for {model}: {size}"),)


def check_tool_choice(asked: Asked) -> None:
    """Whether the choice of tools makes sense for any model. Raises UnsupportedToolChoiceError."""
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

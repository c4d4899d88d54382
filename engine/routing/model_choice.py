"""The ways to choose a model: a name, several names in order, or required abilities.

A name may be any name that `ModelRegistry.resolve` accepts. The first of several names is the model, and the
others are its fallbacks. A `ModelChoice` leaves the choice to the router.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

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
from callboard.adapters.requests.estimate import at_most
from callboard.adapters.requests.settings import FORCING, media_lacks
from callboard.bus import CallboardError, PromptTooLongError
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject

from ..conversation.context import SchemaMode
from ..models.catalogue import nearest

CAPABILITY_FLAGS = frozenset(
    name for name in AdapterCapabilities.__struct_fields__ if name.startswith("supports_")
)

CAPABILITY_LIMITS = frozenset(("max_context_tokens", "max_output_tokens"))


class Requirements(msgspec.Struct, frozen=True):
    """The abilities that a model must have, in addition to the abilities that its requests need.

    Raises:
        CallboardError: A capability does not exist.
    """

    capabilities: tuple[str, ...] = ()
    """The names of fields of `AdapterCapabilities` that must be true, with or without ``supports_``:
    ``"tools"``."""
    min_context_tokens: int = 0
    """The minimum size of the model's window in tokens, for prompt and reply together."""

    def __post_init__(self) -> None:
        capabilities: str | Sequence[str] = self.capabilities
        names = (capabilities,) if isinstance(capabilities, str) else capabilities
        msgspec.structs.force_setattr(self, "capabilities", tuple(_flag(name) for name in names))

    def unmet(self, capabilities: AdapterCapabilities) -> str | None:
        """The abilities that a model lacks, as text; None if it lacks nothing."""
        lacking = [name for name in self.capabilities if not getattr(capabilities, name)]
        if lacking:
            return f"lacks {', '.join(name.removeprefix('supports_') for name in lacking)}"
        if capabilities.max_context_tokens < self.min_context_tokens:
            return f"has a window of {capabilities.max_context_tokens} tokens, not {self.min_context_tokens}"
        return None


def _flag(name: str) -> str:
    full = name if name.startswith("supports_") else f"supports_{name}"
    if full not in CAPABILITY_FLAGS:
        near = nearest(full, CAPABILITY_FLAGS)
        hint = f"; did you mean {near[0].removeprefix('supports_')!r}?" if near else ""
        raise CallboardError(f"unknown capability {name!r}{hint}")
    return full


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Any model with the required abilities."""

    requires: Requirements = Requirements()
    """The abilities that the model must have, in addition to the abilities that the request needs."""
    prefer: Literal["cheapest", "first"] = "first"
    """``cheapest``: the cheapest model for a nominal usage; models without a price come last. ``first``: the first
    model in the order of `among`, or of models.yaml."""
    among: tuple[str, ...] | None = None
    """The names of the models to choose from; None means all listed models."""

    def __post_init__(self) -> None:
        if self.among is not None:
            msgspec.structs.force_setattr(self, "among", tuple(self.among))


Model: TypeAlias = str | Sequence[str] | ModelChoice


def model_text(model: Model) -> str:
    """A model as text, for events and messages."""
    match model:
        case str():
            return model
        case ModelChoice():
            among = f" of {', '.join(model.among)}" if model.among is not None else ""
            return f"any model{among}, {model.prefer}"
        case _:
            return ", ".join(model)


def overridden(capabilities: AdapterCapabilities, overrides: Mapping[str, bool | int]) -> AdapterCapabilities:
    """The capabilities of an adapter with the corrections of the configuration."""
    return msgspec.structs.replace(capabilities, **overrides) if overrides else capabilities


def stored_model(model: Model) -> Json:
    match model:
        case str():
            return model
        case ModelChoice():
            choice: Json = msgspec.to_builtins(model)
            return choice
        case _:
            return list(model)


def model_of(stored: Json) -> Model:
    return msgspec.convert(stored, str | tuple[str, ...] | ModelChoice)


# --- The check before sending ---


class TurnRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn requires of any model. All fields except the first are options of the turn."""

    new: tuple[Message, ...]
    """The messages that no model has answered yet."""
    tools: Sequence[ToolDefinition] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output_schema: JsonObject | None = None
    schema_mode: SchemaMode = "native"
    reasoning_effort: str | None = None
    max_output_tokens: int | None = None
    """The maximum number of output tokens; None uses the model's own maximum."""
    requires: tuple[Requirements, ...] = ()
    """The requirements of the session, the turn and the choice."""


def check(
    required: TurnRequirements,
    capabilities: AdapterCapabilities,
    *,
    model: str,
    provider: str,
    listed: bool,
    estimated_tokens: int,
    max_output_tokens: int,
) -> tuple[CallWarning, ...]:
    check_tool_choice(required)
    lack = next(_lacks(required, capabilities, listed=listed), None)
    if lack is None and listed and max_output_tokens > capabilities.max_output_tokens:
        lack = f"returns at most {capabilities.max_output_tokens} output tokens, not {max_output_tokens}"
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


def check_tool_choice(required: TurnRequirements) -> None:
    """Check that the tool choice is valid for the turn's tools."""
    choice = required.tool_choice
    if choice is None:
        return
    if choice.mode in ("required", "named") and not required.tools:
        raise UnsupportedToolChoiceError(f"tool choice {choice.mode!r} without tools")
    if choice.tool_name is not None and choice.tool_name not in {tool.name for tool in required.tools}:
        raise UnsupportedToolChoiceError(f"the tool choice names an unknown tool {choice.tool_name!r}")


def _lacks(required: TurnRequirements, capabilities: AdapterCapabilities, *, listed: bool) -> Iterator[str]:
    for message in required.new:
        yield from media_lacks(message, capabilities)
    if required.tools and not capabilities.supports_tools:
        yield "can't call tools"
    if (
        required.tool_choice is not None
        and required.tool_choice.mode in FORCING
        and not capabilities.supports_tool_choice
    ):
        yield "can't be forced to call a tool"
    if required.tools and required.parallel_tool_calls and not capabilities.supports_parallel_tool_calls:
        yield "can't call tools in parallel"
    can_follow_schema = required.output_schema is None or capabilities.supports_structured_output
    if not can_follow_schema and required.schema_mode == "native":
        yield "does not support output schemas"
    if required.reasoning_effort not in (None, "none") and not capabilities.supports_thinking and listed:
        yield f"does not support reasoning, so effort {required.reasoning_effort!r} has no effect"
    for requirements in required.requires:
        unmet = requirements.unmet(capabilities)
        if unmet is not None:
            yield unmet

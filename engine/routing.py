"""From a model's name to one (provider, model), and whether it can do what the request asks.

Pure: it looks at the registry, the model's capabilities and the request, and returns a decision or raises.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapters import (
    AdapterCapabilities,
    CapabilityError,
    ImageBlock,
    Message,
    ToolChoice,
    ToolDefinition,
    UnsupportedToolChoiceError,
)
from bus import Candidate, ConfigurationError, RoutingDecision
from bus.json_types import JsonObject

from .registry import ModelEntry, ModelRegistry

UNLISTED_MAX_OUTPUT = 4096
DEFAULT_MAX_OUTPUT = 16_384


def decide(registry: ModelRegistry, name: str | None) -> tuple[RoutingDecision, ModelEntry]:
    """Resolve a name, or the configured default. Raises ConfigurationError."""
    requested = name or registry.default_model
    if not requested:
        raise ConfigurationError(f"no model named, and {registry.source} has no default_model")
    resolved = registry.resolve(requested)
    entry = registry.adapter_of(resolved.model)
    decision = RoutingDecision(
        requested=requested,
        model=f"{entry.name}:{resolved.model.wire_name}",
        provider=entry.name,
        resolved_by=resolved.resolved_by,
        candidates=(Candidate(resolved.model.id),),
    )
    return decision, resolved.model


def default_max_output(model: ModelEntry, capabilities: AdapterCapabilities, *, listed: bool) -> int:
    """Output tokens for a caller who asks for no number: the model's own limit, within reason."""
    if model.max_output_tokens is not None:
        return model.max_output_tokens
    ceiling = DEFAULT_MAX_OUTPUT if listed else UNLISTED_MAX_OUTPUT
    return min(capabilities.max_output_tokens, ceiling)


def check_capabilities(
    decision: RoutingDecision,
    capabilities: AdapterCapabilities,
    *,
    new: Message,
    tools: Sequence[ToolDefinition],
    tool_choice: ToolChoice | None,
    output_schema: JsonObject | None,
    max_output_tokens: int,
) -> None:
    """Whether the model can do what this turn itself asks; older turns are fitted to it, with a loss report.

    Raises CapabilityError, before anything is sent.
    """
    model = decision.model
    for block in new.content:
        if isinstance(block, ImageBlock):
            if not capabilities.supports_images:
                raise CapabilityError(f"{model} takes no images", provider=decision.provider)
            accepted = capabilities.accepted_image_media_types
            if accepted is not None and block.media_type is not None and block.media_type not in accepted:
                raise CapabilityError(
                    f"{model} takes no {block.media_type} images, only {', '.join(accepted)}",
                    provider=decision.provider,
                )
    if tools and not capabilities.supports_tools:
        raise CapabilityError(f"{model} can't call tools", provider=decision.provider)
    if tool_choice is not None and tool_choice.mode in ("required", "named") and not tools:
        raise UnsupportedToolChoiceError(f"tool choice {tool_choice.mode!r} without tools")
    named = tool_choice.tool_name if tool_choice is not None else None
    if named is not None and named not in {tool.name for tool in tools}:
        raise UnsupportedToolChoiceError(f"there is no tool named {named!r} to choose")
    if output_schema is not None and not capabilities.supports_structured_output:
        raise CapabilityError(f"{model} can't be held to a schema", provider=decision.provider)
    if max_output_tokens > capabilities.max_output_tokens and decision.resolved_by != "passthrough":
        raise CapabilityError(
            f"{model} gives at most {capabilities.max_output_tokens} output tokens, not {max_output_tokens}",
            provider=decision.provider,
        )

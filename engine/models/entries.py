"""The entries of a configuration for adapters and models, and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from callboard.adapters import (
    AdapterCapabilities,
    AdapterConfig,
    CallWarning,
    Message,
    ProviderAdapter,
    RetryPolicy,
    Role,
    ToolChoice,
    ToolDefinition,
    create_adapter,
)
from callboard.adapters.provider import Kind
from callboard.bus import Clock
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import JsonObject

# --- Changes to requests in models.yaml ---

S = TypeVar("S", bound=msgspec.Struct)


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the tools of a model. None means no change."""

    strict: bool | None = None
    """Whether tools without their own setting are strict."""
    max: int | None = None
    """The maximum number of tools in a request.

    If there are more tools, the `core` tools are kept first, then the tools that the conversation has used, then
    the other tools in order.
    """
    core: tuple[str, ...] | None = None
    """The names of the tools that are kept first."""
    parallel: bool | None = None
    """Whether one reply may have several tool calls, if the caller doesn't set this."""
    force_first_turn: bool | None = None
    """Whether the first reply of a conversation must call a tool, if there are any."""


NO_TOOL_SETTINGS = ToolSettings()


class ModelInput(msgspec.Struct, frozen=True):
    """The part of a turn that depends on the model."""

    tools: tuple[ToolDefinition, ...]
    system_prompt: str | None
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about tools that had to be changed for the model."""
    schema: JsonObject | None = None
    """The schema that the model itself must follow."""
    forced: ToolChoice | None = None
    """The forced tool choice, if the schema is sent as a tool."""


def over(upper: S, lower: S) -> S:
    """The upper settings. Unset fields are filled from the lower settings."""
    settings = {name: value for name in upper.__struct_fields__ if (value := getattr(upper, name)) is not None}
    return msgspec.structs.replace(lower, **settings)


def model_input(
    settings: ToolSettings,
    addendum: str | None,
    *,
    tools: Sequence[ToolDefinition],
    system_prompt: str | None,
    messages: Sequence[Message],
    choice: ToolChoice | None,
) -> ModelInput:
    offered = tuple(tools)
    warnings: tuple[CallWarning, ...] = ()
    if settings.max is not None and len(offered) > settings.max:
        offered, warnings = _limited(offered, settings.max, settings.core or (), messages, choice)
    if settings.strict is not None:
        offered = tuple(
            msgspec.structs.replace(tool, strict=settings.strict) if tool.strict is None else tool
            for tool in offered
        )
    return ModelInput(offered, joined(system_prompt, addendum), warnings)


def joined(system_prompt: str | None, addendum: str | None) -> str | None:
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
    """Limit the number of tools. They stay in their own order, so that providers' caches stay valid."""
    chosen = choice.tool_name if choice is not None else None
    used = {call.name for message in messages for call in message.tool_uses}

    def tier(tool: ToolDefinition) -> int:
        if tool.name == chosen:
            return 0
        if tool.name in core:
            return 1
        return 2 if tool.name in used else 3

    sent_names = {tool.name for tool in sorted(tools, key=tier)[:limit]}
    left_out = ", ".join(tool.name for tool in tools if tool.name not in sent_names)
    text = f"{len(tools)} tools exceed the limit of {limit}. Left out: {left_out}"
    return tuple(tool for tool in tools if tool.name in sent_names), (
        CallWarning(WarningCode.TOOLS_LEFT_OUT, text),
    )


def first_choice(
    settings: ToolSettings,
    choice: ToolChoice | None,
    *,
    tools: Sequence[ToolDefinition],
    messages: Sequence[Message],
    capabilities: AdapterCapabilities,
) -> ToolChoice | None:
    """The tool choice for the first call of a turn: the caller's choice, else the forced choice of the
    configuration.
    """
    if choice is not None or not settings.force_first_turn or not tools or not capabilities.supports_tool_choice:
        return choice
    started = any(message.role is Role.ASSISTANT for message in messages)
    return None if started else ToolChoice("required")


def parallel_calls(
    settings: ToolSettings,
    parallel: bool | None,
    *,
    tools: Sequence[ToolDefinition],
    capabilities: AdapterCapabilities,
) -> bool | None:
    """The setting for parallel calls: the caller's setting. Without one, the configuration's setting, if the model
    supports it.
    """
    if parallel is not None or settings.parallel is None or not tools:
        return parallel
    return settings.parallel if capabilities.supports_parallel_tool_calls else None


class ModelDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults for the options of calls. None leaves the option to the model."""

    max_output_tokens: int | None = None
    """The maximum number of tokens of a reply, including reasoning."""
    temperature: float | None = None
    """The sampling temperature, mostly from 0 to 2."""
    effort: str | None = None
    """The effort for reasoning, in the model's own words."""


NO_DEFAULTS = ModelDefaults()


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One configured adapter."""

    name: str
    """The name, which is the part before the colon in the names of its models."""
    type: str
    """A registered type, or ``package.module:Class``."""
    config: AdapterConfig
    """The configuration of the adapter."""
    prices_as: str | None = None
    """The provider whose published prices apply. Set only if the adapter's type and address don't determine the
    provider.
    """
    missing_key: str | None = None
    """The environment variable of the adapter's key, if the variable is not set."""
    key_from: str | None = None
    """The source of the adapter's key, as text; None without a key, or for a key from code."""
    address_from: str | None = None
    """The environment variable with the adapter's address; None if the address has another source or is the
    provider's default.
    """
    max_concurrency: int | None = None
    """The maximum number of concurrent calls. More calls wait. None uses the engine's
    `Limits.calls_per_provider`.
    """
    capabilities: dict[str, bool | int] = {}
    """Corrections of the abilities of the adapter's models. A model's own correction takes precedence."""
    defaults: ModelDefaults = NO_DEFAULTS
    """Options of requests to the adapter's models. A model's own options take precedence."""
    tools: ToolSettings = NO_TOOL_SETTINGS
    """Settings for the tools of the adapter's models. A model's own settings take precedence."""
    prompt_addendum: str | None = None
    """Text after the system prompt, for models without their own addendum."""
    make: Callable[[], ProviderAdapter] | None = None
    """A function that makes the adapter instead of its type; for adapters of `Engine.register`."""
    shared: bool = False
    """Whether `make` returns the same adapter each time, which the host owns."""
    offered: bool = False
    """Whether the adapter only comes from the environment. An adapter of models.yaml or of the host replaces
    it.
    """

    @property
    def state(self) -> Literal["configured", "not_configured"]:
        """``configured``, or ``not_configured`` if the adapter's key is missing."""
        return "configured" if self.missing_key is None else "not_configured"

    def create(self, clock: Clock) -> ProviderAdapter:
        """Create the adapter. A host's own function may raise other exceptions.

        Raises:
            ConfigurationError: No adapter can be made.
        """
        if self.make is not None:
            return self.make()
        return create_adapter(self.type, self.config, name=self.name, clock=clock)


ModelKind: TypeAlias = Kind


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One listed model."""

    id: str
    """``provider:name``."""
    adapter: str
    """The name of the model's adapter."""
    wire_name: str
    """The provider's own name of the model."""
    tier: str | None = None
    """A name of the model within its adapter."""
    can_delegate: bool = False
    """For hosts. Callboard stores it and does not use it."""
    aliases: tuple[str, ...] = ()
    """Other names of the model."""
    max_output_tokens: int | None = None
    """The maximum number of output tokens that may be requested."""
    fallback: tuple[str, ...] = ()
    """The names of the models to try, in order, when this model fails."""
    capabilities: dict[str, bool | int] = {}
    """Fields of `AdapterCapabilities` that replace the adapter's values."""
    defaults: ModelDefaults = NO_DEFAULTS
    """Default options of requests."""
    tools: ToolSettings = NO_TOOL_SETTINGS
    """Settings for the model's tools."""
    prompt_addendum: str | None = None
    """Text that follows the system prompt."""
    max_retries: int | None = None
    """The maximum number of retries; overrides the adapter's."""
    retry: RetryPolicy | None = None
    """The retry policy; overrides the adapter's."""
    retry_empty: int | None = None
    """The maximum number of times that an empty reply is requested again. A caller's own value takes
    precedence.
    """
    usual_max_output: int | None = None
    """The adapter's output limit for all models. The limit of this model may be lower."""
    kind: ModelKind = "chat"
    """The kind of request that the model answers. For conversations, only models of kind ``chat`` are chosen
    automatically.
    """
    embedding_space: str | None = None
    """Models with the same name here can replace each other; None uses the model's name."""

    def on(self, adapter: AdapterEntry) -> ModelEntry:
        """This entry, with unset settings filled from its adapter."""
        defaults = over(self.defaults, msgspec.structs.replace(adapter.defaults, max_output_tokens=None))
        return msgspec.structs.replace(
            self,
            capabilities={**adapter.capabilities, **self.capabilities},
            defaults=defaults,
            tools=over(self.tools, adapter.tools),
            prompt_addendum=adapter.prompt_addendum if self.prompt_addendum is None else self.prompt_addendum,
            usual_max_output=adapter.defaults.max_output_tokens,
        )

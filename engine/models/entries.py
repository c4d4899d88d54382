"""One adapter and one model of a configuration, and their defaults."""

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
    """How tools are sent to a model. None changes nothing."""

    strict: bool | None = None
    """Whether tools without their own setting are strict."""
    max: int | None = None
    """The largest number of tools in a request.

    `core` tools are kept first, then the tools that the conversation has used, then the rest in order.
    """
    core: tuple[str, ...] | None = None
    """The names of the tools that are kept first."""
    parallel: bool | None = None
    """Whether one reply may have several calls if the caller doesn't set this."""
    force_first_turn: bool | None = None
    """Whether the first reply of a conversation must call a tool, if there are any."""


NO_TOOL_SETTINGS = ToolSettings()


class ModelInput(msgspec.Struct, frozen=True):
    """The part of a turn that depends on the model."""

    tools: tuple[ToolDefinition, ...]
    system_prompt: str | None
    """The system text."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about tools that had to be changed for the model."""
    schema: JsonObject | None = None
    """The schema that the model itself must follow."""
    forced: ToolChoice | None = None
    """The tool choice, if a schema is requested as a tool call."""


def over(upper: S, lower: S) -> S:
    """Settings whose unset fields are filled from the settings below."""
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
    """The tools and the system text for a model."""
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
    """A system text with a text that the model also needs."""
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
    """The allowed number of tools, in their own order, so that providers' caches stay valid."""
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
    text = f"{len(tools)} tools exceed the limit of {limit}. Left out: {left_out}"
    return tuple(tool for tool in tools if tool.name in kept), (CallWarning(WarningCode.TOOLS_LEFT_OUT, text),)


def first_choice(
    settings: ToolSettings,
    choice: ToolChoice | None,
    *,
    tools: Sequence[ToolDefinition],
    messages: Sequence[Message],
    capabilities: AdapterCapabilities,
) -> ToolChoice | None:
    """The tool choice for the first call of a turn: the caller's, or the forced one of the configuration."""
    if choice is not None or not settings.force_first_turn or not tools or not capabilities.supports_tool_choice:
        return choice
    started = any(message.role is Role.ASSISTANT for message in messages)
    return None if started else ToolChoice("required")


def parallel_calls(
    settings: ToolSettings,
    asked: bool | None,
    *,
    tools: Sequence[ToolDefinition],
    capabilities: AdapterCapabilities,
) -> bool | None:
    """The setting for parallel calls: the caller's, else the configuration's if the model supports it."""
    if asked is not None or settings.parallel is None or not tools:
        return asked
    return settings.parallel if capabilities.supports_parallel_tool_calls else None


class ModelDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values for options that the caller of a model leaves out. None leaves an option to the model."""

    max_output_tokens: int | None = None
    """The largest number of tokens of a reply, reasoning included."""
    temperature: float | None = None
    """The sampling temperature, mostly from 0 to 2."""
    effort: str | None = None
    """The effort for reasoning, in the model's own words."""


NO_DEFAULTS = ModelDefaults()


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One configured adapter."""

    name: str
    """The name before the colon of its models' names."""
    type: str
    """A registered type, or ``package.module:Class``."""
    config: AdapterConfig
    """The configuration of the adapter."""
    prices_as: str | None = None
    """The provider that publishes the models' prices, if type and address don't show it."""
    missing_key: str | None = None
    """The environment variable of its key, if it is not set."""
    key_from: str | None = None
    """A text about the place of its key; None without a key, and for a key from code."""
    address_from: str | None = None
    """The environment variable that its address came from; None if it came from elsewhere or is the provider's
    own.
    """
    max_concurrency: int | None = None
    """The largest number of concurrent calls; further calls wait. None means the engine's
    `Limits.calls_per_provider`."""
    capabilities: dict[str, bool | int] = {}
    """Corrections of the abilities of its models. A model's own correction takes precedence."""
    defaults: ModelDefaults = NO_DEFAULTS
    """Options of requests to its models. A model's own options take precedence."""
    tools: ToolSettings = NO_TOOL_SETTINGS
    """How tools are sent to its models. A model's own settings take precedence."""
    prompt_addendum: str | None = None
    """Text after the system prompt, for models without their own."""
    make: Callable[[], ProviderAdapter] | None = None
    """A function that makes the adapter, in place of its type; for adapters of `Engine.register`."""
    shared: bool = False
    """Whether `make` returns the same adapter each time, which belongs to the host."""
    offered: bool = False
    """Whether only the environment offers the adapter. An adapter of models.yaml or of the host replaces it."""

    @property
    def state(self) -> Literal["configured", "not_configured"]:
        """``configured``, or ``not_configured`` if its key is missing."""
        return "configured" if self.missing_key is None else "not_configured"

    def create(self, clock: Clock) -> ProviderAdapter:
        """An adapter as configured. A host's own adapter may raise any other exception.

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
    """The name of its adapter."""
    wire_name: str
    """The provider's own name of the model."""
    tier: str | None = None
    """A name of the model within its adapter."""
    can_delegate: bool = False
    """A mark for hosts. It is stored and not used here."""
    aliases: tuple[str, ...] = ()
    """Further names."""
    max_output_tokens: int | None = None
    """The largest number of output tokens that may be requested."""
    fallback: tuple[str, ...] = ()
    """The names of the models to try, in order, when this one fails."""
    capabilities: dict[str, bool | int] = {}
    """Fields of `AdapterCapabilities` that replace the adapter's values."""
    defaults: ModelDefaults = NO_DEFAULTS
    """Options of requests, unless callers set them."""
    tools: ToolSettings = NO_TOOL_SETTINGS
    """How tools are sent to it."""
    prompt_addendum: str | None = None
    """Text that follows the system prompt."""
    max_retries: int | None = None
    """The number of retries, in place of the adapter's."""
    retry: RetryPolicy | None = None
    """The retry policy, in place of the adapter's."""
    retry_empty: int | None = None
    """The number of times that an empty reply is requested again, unless callers set it."""
    usual_max_output: int | None = None
    """The output limit of all the adapter's models, as far as their own limits allow."""
    kind: ModelKind = "chat"
    """The kind of question that it answers. Only a model of kind ``chat`` is chosen for a conversation
    automatically."""
    embedding_space: str | None = None
    """A name shared by models that can replace each other; None means the model's name."""

    def on(self, adapter: AdapterEntry) -> ModelEntry:
        """This entry, with its unset settings filled from its adapter."""
        defaults = over(self.defaults, msgspec.structs.replace(adapter.defaults, max_output_tokens=None))
        return msgspec.structs.replace(
            self,
            capabilities={**adapter.capabilities, **self.capabilities},
            defaults=defaults,
            tools=over(self.tools, adapter.tools),
            prompt_addendum=adapter.prompt_addendum if self.prompt_addendum is None else self.prompt_addendum,
            usual_max_output=adapter.defaults.max_output_tokens,
        )

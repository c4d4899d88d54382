"""One adapter and one model as a configuration lists them, and what it leaves open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from adapters import AdapterConfig, ProviderAdapter, RetryPolicy, create_adapter
from adapters.provider import Kind
from bus import Clock

from .tool_settings import NO_TOOL_SETTINGS, ToolSettings, over


class ModelDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to a model asks where its caller says nothing; None leaves it to the model.

    max_output_tokens: of a reply, reasoning included. temperature: mostly from 0 to 2. effort: of reasoning, in
    the model's own words.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    effort: str | None = None


NO_DEFAULTS = ModelDefaults()


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One configured adapter.

    name: stands before the colon of its models' names. type: a registered one, or ``package.module:Class``.
    config: what it is made with. prices_as: the provider whose published prices its models have, where its type
    and address don't say it.
    missing_key: the environment variable that should hold its key and doesn't. max_concurrency: calls at once;
    more wait. None is the engine's `Limits.calls_per_provider`. capabilities, defaults, tools, prompt_addendum:
    for its models, where they don't say otherwise themselves; see `ModelEntry`.

    make: gives the adapter, instead of its type; of those that `Engine.register` was given. shared: it gives
    the same one, which is the host's own.
    """

    name: str
    type: str
    config: AdapterConfig
    prices_as: str | None = None
    missing_key: str | None = None
    max_concurrency: int | None = None
    capabilities: dict[str, bool | int] = {}
    defaults: ModelDefaults = NO_DEFAULTS
    tools: ToolSettings = NO_TOOL_SETTINGS
    prompt_addendum: str | None = None
    make: Callable[[], ProviderAdapter] | None = None
    shared: bool = False

    @property
    def state(self) -> Literal["configured", "not_configured"]:
        """Whether it has the key that it needs."""
        return "configured" if self.missing_key is None else "not_configured"

    def create(self, clock: Clock) -> ProviderAdapter:
        """An adapter as configured. Raises ConfigurationError, and what a host's own raises."""
        if self.make is not None:
            return self.make()
        return create_adapter(self.type, self.config, name=self.name, clock=clock)


ModelKind: TypeAlias = Kind


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One listed model. id: ``provider:name``. adapter: by its name. wire_name: what the provider calls it.

    tier: a name among its adapter's models. aliases: further names. can_delegate: for hosts; kept, and not used
    here. max_output_tokens: the most that may be asked for. defaults: what requests ask where
    callers say nothing. tools: how it is given tools.
    fallback: names of the models to try, in order, when this one fails. capabilities: fields of
    `AdapterCapabilities` that are otherwise than the adapter says. prompt_addendum: follows the system prompt.
    max_retries, retry: instead of the adapter's. usual_max_output: of all the adapter's models, as far as they go.
    kind: a model of another kind than ``chat`` is never chosen for a conversation by itself. embedding_space:
    models of the same one may stand in for each other; None goes by the name.
    """

    id: str
    adapter: str
    wire_name: str
    tier: str | None = None
    can_delegate: bool = False
    aliases: tuple[str, ...] = ()
    max_output_tokens: int | None = None
    fallback: tuple[str, ...] = ()
    capabilities: dict[str, bool | int] = {}
    defaults: ModelDefaults = NO_DEFAULTS
    tools: ToolSettings = NO_TOOL_SETTINGS
    prompt_addendum: str | None = None
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    usual_max_output: int | None = None
    kind: ModelKind = "chat"
    embedding_space: str | None = None

    def on(self, adapter: AdapterEntry) -> ModelEntry:
        """This entry, with what it leaves open as its adapter has it."""
        defaults = over(self.defaults, msgspec.structs.replace(adapter.defaults, max_output_tokens=None))
        return msgspec.structs.replace(
            self,
            capabilities={**adapter.capabilities, **self.capabilities},
            defaults=defaults,
            tools=over(self.tools, adapter.tools),
            prompt_addendum=adapter.prompt_addendum if self.prompt_addendum is None else self.prompt_addendum,
            usual_max_output=adapter.defaults.max_output_tokens,
        )

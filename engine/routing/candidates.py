"""The route of a call: from the caller's model name to the models that may serve, and to the chosen one.

This module is pure. `expand` turns a name, a chain or a `ModelChoice` into the models that may serve.
`calls.preparation` determines the abilities and availability of each (`Option`). `choose` selects one, and records
the reason why each other model was not chosen.

A chain is tried in order, with two exceptions. A model whose provider requested a pause is tried after the ready
models. A turn stays with the model that has started to answer it. The first named model must have the required
abilities. A fallback replaces this model if it fails or the prompt is too long, but not if it lacks an ability. A
model without alternatives is called even if it is unavailable: the call is the probe.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec

from callboard.adapters import (
    AdapterCapabilities,
    AdapterError,
    CallWarning,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    Message,
    NotFoundError,
    Role,
    StopReason,
    TokenUsage,
)
from callboard.adapters.requests.estimate import at_most
from callboard.bus import (
    CallboardError,
    Candidate,
    ConfigurationError,
    NoModelAvailable,
    PromptTooLongError,
    RoutingDecision,
)
from callboard.bus.errors import CancelledError, OutcomeUnknownError
from callboard.bus.values.base import cached_property

from ..budgets.ledger import Refusal
from ..models.entries import ModelEntry, ModelInput
from ..models.registry import ModelRegistry
from .availability import READY, Readiness
from .model_choice import Model, ModelChoice, Requirements, model_text

UNLISTED_MAX_OUTPUT = 4096
DEFAULT_MAX_OUTPUT = 16_384
LEAST_DEFAULT_OUTPUT = 256

NOMINAL_USAGE = TokenUsage(3000, 1000)
"""The usage for comparing models when the cheapest one is requested."""


class Named(msgspec.Struct, frozen=True, dict=True):
    name: str
    entry: ModelEntry
    resolved_by: str
    """How the name was resolved, as in `RoutingDecision`."""
    fallback_of: str | None = None
    """The model in models.yaml that has this model as a fallback."""

    @functools.cached_property
    def model(self) -> str:
        """The model as ``provider:name``. It is cached, because a call uses it ten times."""
        return f"{self.entry.adapter}:{self.entry.wire_name}"

    @property
    def listed(self) -> bool:
        """Whether the model is listed in models.yaml."""
        return self.resolved_by != "passthrough"


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The models that may serve a caller's choice."""

    requested: str
    named: tuple[Named, ...]
    chosen: bool = False
    """Whether the router chooses, so that the first model is not preferred."""
    cheapest: bool = False
    requires: Requirements = Requirements()

    @cached_property
    def without_alternative(self) -> RoutingDecision:
        """The routing decision of a plan with only one model."""
        (named,) = self.named
        return self.decision(named, [Candidate(named.model, None, named.fallback_of)])

    def decision(self, selected: Named, candidates: Sequence[Candidate]) -> RoutingDecision:
        """The recorded decision: the chosen model, and the reason why each other model was not chosen."""
        return RoutingDecision(
            requested=self.requested,
            model=selected.model,
            provider=selected.entry.adapter,
            resolved_by="choice" if self.chosen else selected.resolved_by,
            candidates=tuple(candidates),
        )


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may serve, with everything that is known before a request is sent."""

    named: Named
    capabilities: AdapterCapabilities | None = None
    """The capabilities of the model, corrected by the configuration."""
    input: ModelInput | None = None
    """The tools, the system text and the schema in the form for this model."""
    estimated_tokens: int | None = None
    max_output_tokens: int = 0
    warnings: tuple[CallWarning, ...] = ()
    obstacle: CallboardError | None = None
    """The reason why the model can't serve this request."""
    readiness: Readiness = READY
    nominal_cost: int | None = None
    """The cost of a nominal usage in nano-USD; None if it is unknown, or if the cheapest model is not requested.
    """
    too_dear: Refusal | None = None
    """The refusal of a budget that requires a cheaper model; None if the call has room."""
    speaks_client: bool = False
    """Whether the provider has the same protocol as the client, so that the client's own body may be sent."""


class Route(msgspec.Struct, frozen=True):
    """The model that was chosen for one call."""

    decision: RoutingDecision
    """The decision as recorded in events."""
    option: Option
    others: tuple[str, ...] = ()
    """The other models that are ready to serve; empty if the turn must stay with this one."""


_MOST_PLANS = 512  # limited, because any name is accepted


def expand(registry: ModelRegistry, model: Model | None, fallback: Sequence[str] | None = None) -> Plan:
    """The models that may serve, in order."""
    requested = model or registry.default_model
    if not requested:
        raise ConfigurationError(
            f"no model given, and {registry.source} has no default_model. Pass a model as provider:name "
            f"or as listed by `callboard models`, or set default_model in models.yaml"
        )
    if isinstance(requested, ModelChoice):
        return _expand_choice(registry, requested, fallback or ())
    names = (requested,) if isinstance(requested, str) else tuple(requested)
    if fallback is None and len(names) == 1:
        return _of_chain(registry, names[0])
    return Plan(requested=model_text(requested), named=_distinct(registry, (*names, *(fallback or ()))))


def _expand_choice(registry: ModelRegistry, choice: ModelChoice, fallback: Sequence[str]) -> Plan:
    listed = tuple(name for name, model in registry.models.items() if model.kind == "chat")
    among = listed if choice.among is None else choice.among
    named = _distinct(registry, (*among, *fallback))
    if not named:
        raise ConfigurationError(f"{model_text(choice)}: no model matches in {registry.source}")
    return Plan(
        requested=model_text(choice),
        named=named,
        chosen=True,
        cheapest=choice.prefer == "cheapest",
        requires=choice.requires,
    )


def _of_chain(registry: ModelRegistry, name: str) -> Plan:
    """A name with its fallbacks in models.yaml. The plan is cached with the registry, which never changes."""
    plan: Plan | None = registry.plans.get(name)
    if plan is None:
        plan = Plan(requested=name, named=_chain(registry, name))
        if len(registry.plans) < _MOST_PLANS:
            registry.plans[name] = plan
    return plan


def _chain(registry: ModelRegistry, name: str) -> tuple[Named, ...]:
    """A model and all its fallbacks in models.yaml. Each model is listed once, so a cycle of fallbacks ends."""
    named = _named(registry, name)
    found = {named.model: named}
    waiting = [named]
    for member in waiting:  # The list grows during the loop.
        for further in member.entry.fallback:
            named = _named(registry, further, fallback_of=member.model)
            if named.model not in found:
                found[named.model] = named
                waiting.append(named)
    return tuple(found.values())


def _named(registry: ModelRegistry, name: str, fallback_of: str | None = None) -> Named:
    resolved = registry.resolve(name)
    return Named(name, resolved.model, resolved.resolved_by, fallback_of)


def _distinct(registry: ModelRegistry, names: Sequence[str]) -> tuple[Named, ...]:
    found: dict[str, Named] = {}
    for name in names:
        named = _named(registry, name)
        found.setdefault(named.model, named)
    return tuple(found.values())


def default_max_output(
    model: ModelEntry, capabilities: AdapterCapabilities, *, listed: bool, prompt_tokens: int = 0
) -> int:
    """The maximum number of output tokens if the caller sets none.

    It is the model's own limit, up to a common maximum. If the configuration has no limit, prompt and reply share
    the model's window.
    """
    configured = model.defaults.max_output_tokens or model.max_output_tokens
    if configured is not None:
        return configured
    usual = model.usual_max_output
    if usual is not None:
        return min(capabilities.max_output_tokens, usual) if listed else usual
    ceiling = DEFAULT_MAX_OUTPUT if listed else UNLISTED_MAX_OUTPUT
    room = capabilities.max_context_tokens - at_most(prompt_tokens)
    return min(capabilities.max_output_tokens, ceiling, max(room, LEAST_DEFAULT_OUTPUT))


def asks_for_length(model: ModelEntry) -> bool:
    """Whether the configuration sets the length of the model's replies."""
    return bool(model.defaults.max_output_tokens or model.max_output_tokens or model.usual_max_output)


def choose(
    plan: Plan,
    options: Sequence[Option],
    *,
    failed: Mapping[str, str] = {},
    stay_with: str | None = None,
    cached_at: str | None = None,
) -> Route:
    alone = len(options) == 1
    if alone and options[0].obstacle is None and not failed:
        return Route(plan.without_alternative, options[0])
    rejected = [_rejection(option, failed, alone=alone) for option in options]
    usable = [option for option, reason in zip(options, rejected, strict=True) if reason is None]
    lack = options[0].obstacle
    too_long = isinstance(lack, PromptTooLongError)  # A fallback with a larger window may fit.
    if isinstance(lack, CapabilityError) and not too_long and not plan.chosen and not failed:
        raise lack
    if not usable:
        raise refusal(plan, options)
    selected = usable[0]
    if len(usable) > 1:
        first = min(range(len(usable)), key=lambda place: _rank(plan, usable[place], place, stay_with, cached_at))
        selected = usable[first]
    others: tuple[str, ...] = ()
    if len(usable) > 1 and stay_with != selected.named.model:
        ready = [option for option in usable if option is not selected and option.readiness.kind == "ready"]
        others = tuple([option.named.model for option in ready])
    return Route(_decision(plan, options, rejected, selected, cached_at), selected, others)


def _decision(
    plan: Plan, options: Sequence[Option], rejected: Sequence[str | None], selected: Option, cached_at: str | None
) -> RoutingDecision:
    """The decision, with the reason why each of the other models was not chosen."""
    model = selected.named.model
    not_needed = (
        f"not needed: {model} {'has the prompt in its cache' if model == cached_at else 'has a higher rank'}"
    )
    candidates = []
    for option, reason in zip(options, rejected, strict=True):
        if option is selected:
            why = None
        elif reason is None and option.readiness.kind == "later" and selected.readiness.kind != "later":
            why = option.readiness.reason
        else:
            why = reason or not_needed
        candidates.append(Candidate(option.named.model, why, option.named.fallback_of))
    return plan.decision(selected.named, candidates)


def _rejection(option: Option, failed: Mapping[str, str], *, alone: bool) -> str | None:
    if option.named.model in failed:
        return failed[option.named.model]
    if option.obstacle is not None:
        return str(option.obstacle)
    if option.readiness.kind == "closed" and not alone:
        return option.readiness.reason
    return None


def _rank(
    plan: Plan, option: Option, place: int, stay_with: str | None, cached_at: str | None
) -> tuple[bool, bool, bool, bool, int, int]:
    unpriced = plan.cheapest and option.nominal_cost is None
    cost = (option.nominal_cost or 0) if plan.cheapest else 0
    model = option.named.model
    return model != stay_with, option.readiness.kind == "later", model != cached_at, unpriced, cost, place


def refusal(plan: Plan, options: Sequence[Option]) -> CallboardError:
    if len(options) == 1 and options[0].obstacle is not None:
        return options[0].obstacle
    reasons = "; ".join(
        f"{option.named.model}: {option.obstacle or option.readiness.reason}" for option in options
    )
    if any(option.obstacle is None for option in options):
        waits = [option.readiness.retry_after_seconds for option in options if option.obstacle is None]
        return NoModelAvailable(
            f"no model is available for {plan.requested!r}: {reasons}",
            retryable=True,
            retry_after_seconds=min((wait for wait in waits if wait is not None), default=None),
        )
    if all(isinstance(option.obstacle, ConfigurationError) for option in options):
        return ConfigurationError(f"no model is configured for {plan.requested!r}: {reasons}")
    return CapabilityError(f"no model supports the request to {plan.requested!r}: {reasons}")


def may_fall_back(error: AdapterError) -> bool:
    """Whether a fallback to another model is allowed after a failure.

    A fallback cannot help if the request is invalid or was cancelled. It is not allowed if the provider may have
    run the request, because the second request would be billed, too.
    """
    if isinstance(error, CancelledError | NoModelAvailable | OutcomeUnknownError):
        return False
    return isinstance(error, NotFoundError) or not isinstance(error, InvalidRequestError)


def failures_after(error: AdapterError, selected: Option, options: Sequence[Option]) -> dict[str, str]:
    """The models that can't serve after a failure, each with the reason."""
    out = {selected.named.model: f"failed: {type(error).__name__}: {error}"[:500]}
    if isinstance(error, ContextOverflowError) and selected.capabilities is not None:
        window = selected.capabilities.max_context_tokens
        for option in options:
            capabilities = option.capabilities
            if option is not selected and capabilities is not None and capabilities.max_context_tokens <= window:
                out[option.named.model] = f"its window of {capabilities.max_context_tokens} tokens is not larger"
    return out


def deployment_of_last_reply(messages: Sequence[Message], plan: Plan) -> str | None:
    """The model that answered last, if it is the plan's first model, at the same or at another provider.

    Two models are deployments of the same model if their providers use the same name for it. A fallback with
    another name is not a deployment: the conversation returns to its first model when this model is available
    again. With a `ModelChoice`, each call is chosen again.
    """
    if len(plan.named) == 1 or plan.chosen:
        return None
    last = next((message for message in reversed(messages) if message.role is Role.ASSISTANT), None)
    about = None if last is None else last.metadata
    if about is None or about.routing is None or about.stop_reason is StopReason.ERROR:
        return None
    named = next((each for each in plan.named if each.model == about.routing.model), None)
    if named is None or named.entry.wire_name != plan.named[0].entry.wire_name:
        return None
    return named.model

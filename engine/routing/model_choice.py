"""The ways to name a model: a name, several names in order, or the abilities that the model must have.

A name may be any name that `ModelRegistry.resolve` knows. The first of several names is the model, and the others
are its fallbacks. A `ModelChoice` leaves the choice to the router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from callboard.adapters import AdapterCapabilities
from callboard.bus import CallboardError
from callboard.bus.values.json import Json

from ..models.nearest_names import nearest

CAPABILITY_FLAGS = frozenset(
    name for name in AdapterCapabilities.__struct_fields__ if name.startswith("supports_")
)

CAPABILITY_LIMITS = frozenset(("max_context_tokens", "max_output_tokens"))


class Requirements(msgspec.Struct, frozen=True):
    """The abilities that a host needs of a model, besides those that its requests show.

    Raises:
        CallboardError: There is no capability of a name.
    """

    capabilities: tuple[str, ...] = ()
    """The names of fields of `AdapterCapabilities` that must be true, with or without ``supports_``:
    ``"tools"``."""
    min_context_tokens: int = 0
    """The least number of tokens of the model's window, for prompt and reply together."""

    def __post_init__(self) -> None:
        given: str | Sequence[str] = self.capabilities
        names = (given,) if isinstance(given, str) else given
        msgspec.structs.force_setattr(self, "capabilities", tuple(_flag(name) for name in names))

    def unmet(self, capabilities: AdapterCapabilities) -> str | None:
        """The abilities that a model lacks, in words; None if it lacks nothing."""
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
        raise CallboardError(f"there is no capability {name!r}{hint}")
    return full


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Any model that can do what is asked."""

    requires: Requirements = Requirements()
    """The abilities that the model must have, besides those that the request shows."""
    prefer: Literal["cheapest", "first"] = "first"
    """``cheapest``: the cheapest model for a nominal usage; models without a price come last. ``first``: the first
    model in the order of `among`, or of models.yaml."""
    among: tuple[str, ...] | None = None
    """The names of the models to choose from; None is all models that are listed."""

    def __post_init__(self) -> None:
        if self.among is not None:
            msgspec.structs.force_setattr(self, "among", tuple(self.among))


Model: TypeAlias = str | Sequence[str] | ModelChoice


def in_words(model: Model) -> str:
    """A model in words, for events and texts."""
    match model:
        case str():
            return model
        case ModelChoice():
            among = f" of {', '.join(model.among)}" if model.among is not None else ""
            return f"any model{among}, {model.prefer}"
        case _:
            return ", ".join(model)


def overridden(capabilities: AdapterCapabilities, overrides: Mapping[str, bool | int]) -> AdapterCapabilities:
    """Capabilities as an adapter tells them, corrected by the configuration."""
    return msgspec.structs.replace(capabilities, **overrides) if overrides else capabilities


def stored_model(model: Model) -> Json:
    """A model as it is stored."""
    match model:
        case str():
            return model
        case ModelChoice():
            choice: Json = msgspec.to_builtins(model)
            return choice
        case _:
            return list(model)


def model_of(stored: Json) -> Model:
    """A model as it was given, from its stored form."""
    return msgspec.convert(stored, str | tuple[str, ...] | ModelChoice)

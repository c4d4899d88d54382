"""What a caller may say where a model is named: a name, several in order, or what the model must be able to do.

A name may be any that `ModelRegistry.resolve` knows. The first of several is the model, the others are its
fallbacks. A `ModelChoice` leaves the choice to the router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from adapters import AdapterCapabilities
from bus import CallboardError

from ..models.nearest import nearest

CAPABILITY_FLAGS = frozenset(
    name for name in AdapterCapabilities.__struct_fields__ if name.startswith("supports_")
)

CAPABILITY_LIMITS = frozenset(("max_context_tokens", "max_output_tokens"))


class Requirements(msgspec.Struct, frozen=True):
    """What a host needs of a model, besides what its requests show.

    min_context_tokens: its window, prompt and reply together, has at least so many.
    capabilities: names of `AdapterCapabilities` that must be true, with or without ``supports_``: ``"tools"``.
    Raises CallboardError for a name that is none.
    """

    capabilities: tuple[str, ...] = ()
    min_context_tokens: int = 0

    def __post_init__(self) -> None:
        given: str | Sequence[str] = self.capabilities
        names = (given,) if isinstance(given, str) else given
        msgspec.structs.force_setattr(self, "capabilities", tuple(_flag(name) for name in names))

    def unmet(self, capabilities: AdapterCapabilities) -> str | None:
        """What a model lacks, in words; None if it lacks nothing."""
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
    """Any model that can do what is asked.

    requires: beyond what the request itself shows. prefer: the cheapest for a nominal usage (models without a
    price come last), or the first in the order of `among`, or of models.yaml. among: names; None: all listed.
    """

    requires: Requirements = Requirements()
    prefer: Literal["cheapest", "first"] = "first"
    among: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.among is not None:
            msgspec.structs.force_setattr(self, "among", tuple(self.among))


Model: TypeAlias = str | Sequence[str] | ModelChoice


def in_words(model: Model) -> str:
    """A model as events, messages and people see it."""
    match model:
        case str():
            return model
        case ModelChoice():
            among = f" of {', '.join(model.among)}" if model.among is not None else ""
            return f"any model{among}, {model.prefer}"
        case _:
            return ", ".join(model)


def overridden(capabilities: AdapterCapabilities, overrides: Mapping[str, bool | int]) -> AdapterCapabilities:
    """The adapter's word, corrected by the configuration's."""
    return msgspec.structs.replace(capabilities, **overrides) if overrides else capabilities

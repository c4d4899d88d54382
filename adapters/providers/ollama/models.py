"""A server's models: names, abilities and context windows."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from callboard.bus.values.base import Json

from ...contract import AdapterCapabilities

T = TypeVar("T")

IMAGE_MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp")
"""The types that the server decodes."""

MAX_MODELS = 256
"""The largest number of cached models. The oldest entry is dropped first."""

ASK_AGAIN_SECONDS = 60.0
"""Seconds before a model without an answer is looked up again."""

UNKNOWN = AdapterCapabilities(
    supports_images=True,
    supports_thinking=True,
    supports_tools=True,
    supports_structured_output=True,
    supports_tool_choice=False,
    supports_streaming_tool_calls=False,
    supports_parallel_tool_calls=True,
    accepted_image_media_types=IMAGE_MEDIA_TYPES,
)
"""The assumed capabilities of a model before its lookup. The server refuses missing ones by name."""


class ModelFacts(msgspec.Struct, frozen=True):
    abilities: frozenset[str] | None = None
    """The model's abilities; None if not reported (older servers)."""
    context_tokens: int | None = None
    """The largest window of the model; None if unknown. The window of a call is its `num_ctx`."""
    family: str = ""

    @property
    def thinks(self) -> bool | None:
        """Whether it reasons; None if unknown."""
        return None if self.abilities is None else "thinking" in self.abilities

    @property
    def has_think_levels(self) -> bool:
        """Whether its reasoning has levels. Otherwise it is on or off."""
        return self.family.replace("-", "").startswith("gptoss")

    def capabilities(self) -> AdapterCapabilities:
        window, known = self.context_tokens, UNKNOWN
        if window is not None:
            known = msgspec.structs.replace(known, max_context_tokens=window, max_output_tokens=window)
        if self.abilities is None:
            return known
        return msgspec.structs.replace(
            known,
            supports_images="vision" in self.abilities,
            supports_thinking="thinking" in self.abilities,
            supports_tools="tools" in self.abilities,
            supports_parallel_tool_calls="tools" in self.abilities,
        )


def read_show(value: Json) -> ModelFacts | None:
    """Parse an answer of `/api/show`; None if it is invalid."""
    if not isinstance(value, dict) or not {"capabilities", "details", "model_info"} & value.keys():
        return None
    abilities, details = value.get("capabilities"), value.get("details")
    family = details.get("family") if isinstance(details, dict) else None
    return ModelFacts(
        abilities=frozenset(map(str, abilities)) if isinstance(abilities, list) else None,
        context_tokens=_context_length(value.get("model_info")),
        family=family if isinstance(family, str) else "",
    )


def _context_length(info: Json) -> int | None:
    """``<architecture>.context_length`` of the model's metadata."""
    if not isinstance(info, dict):
        return None
    named = info.get(f"{info.get('general.architecture')}.context_length")
    lengths = [named, *(value for name, value in info.items() if name.endswith(".context_length"))]
    return next(
        (n for n in lengths if isinstance(n, int) and not isinstance(n, bool) and n > 0),
        None,
    )


def read_tags(value: Json) -> tuple[str, ...]:
    """The names in an answer of `/api/tags`, in the server's order: the latest first."""
    models = value.get("models") if isinstance(value, dict) else None
    names: list[str] = []
    for model in models if isinstance(models, list) else ():
        name = (model.get("model") or model.get("name")) if isinstance(model, dict) else None
        if isinstance(name, str):
            names.append(name)
    return tuple(names)


class Catalogue:
    """The known models by full name. Times are in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._facts: dict[str, ModelFacts] = {}
        self._asked: dict[str, float] = {}

    def facts(self, model: str) -> ModelFacts | None:
        return self._facts.get(full_name(model))

    def learn(self, model: str, facts: ModelFacts | None, now: float) -> None:
        """Cache an answer, or its absence."""
        name = full_name(model)
        if facts is None:
            put(self._asked, name, now)
        else:
            self._asked.pop(name, None)
            put(self._facts, name, facts)

    def wants(self, model: str, now: float) -> bool:
        """Whether to look up a model: it is unknown, and its last lookup did not fail recently."""
        name = full_name(model)
        asked = self._asked.get(name)
        return name not in self._facts and (asked is None or now - asked >= ASK_AGAIN_SECONDS)


def full_name(model: str) -> str:
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


def put(table: dict[str, T], model: str, value: T) -> None:
    """Put the latest entry into a table of at most MAX_MODELS."""
    table.pop(model, None)
    while len(table) >= MAX_MODELS:
        table.pop(next(iter(table)))
    table[model] = value


SMALLEST = 4096


def window_size(needed: int, limit: int | None) -> int:
    """The smallest window for `needed` tokens: a power of two, or the model's `limit`."""
    size = max(SMALLEST, 1 << max(0, needed - 1).bit_length())
    return size if limit is None else min(size, limit)


class Windows:
    """The windows in use, by the model's name."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def choose(self, model: str, needed: int, limit: int | None) -> int:
        """The window for a call: at least the one that the model was last loaded with."""
        size = max(window_size(needed, limit), self._sizes.get(model, 0))
        put(self._sizes, model, size)
        return size

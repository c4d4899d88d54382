"""The type of a decoded JSON value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
    """What JSON can say: None, a bool, a number, text, a list or an object."""
else:
    Json = Any  # msgspec decodes Any as plain JSON; it can't follow a recursive alias

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON."""

"""The type of a decoded JSON value, and how large one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
    """What JSON can say: None, a bool, a number, text, a list or an object."""
else:
    Json = Any  # msgspec decodes Any as plain JSON; it can't follow a recursive alias

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON."""


def json_size(value: Json) -> int:
    """About the bytes of a value as JSON text."""
    try:
        return len(msgspec.json.encode(value))
    except UnicodeEncodeError:  # half a surrogate pair
        return len(str(value))

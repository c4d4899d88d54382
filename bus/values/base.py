"""JSON values, cached properties, and values as short text."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
    """A JSON value: None, a bool, a number, text, a list or an object."""
else:
    Json = Any  # msgspec decodes Any as plain JSON; it can't follow a recursive alias

JsonObject: TypeAlias = dict[str, Json]
"""An object of JSON."""


def json_size(value: Json) -> int:
    """A rough number of bytes of a value as JSON text."""
    try:
        return len(msgspec.json.encode(value))
    except UnicodeEncodeError:  # half a surrogate pair
        return len(str(value))


def as_utf8(encoded: bytes) -> bytes:
    """Convert encoded JSON to valid UTF-8. A provider's usage object is stored as received, so it may contain
    invalid bytes.
    """
    return encoded if encoded.isascii() else encoded.decode("utf-8", "replace").encode()


T = TypeVar("T")
S = TypeVar("S")


class cached_property(Generic[S, T]):
    """A property that is computed once for each object.

    Before Python 3.12, `functools.cached_property` takes a lock on each access. This class takes none, so two
    threads may both compute the value.
    """

    def __init__(self, work: Callable[[S], T]) -> None:
        self._work = work
        self.name = work.__name__
        """The key in the object's ``__dict__``."""
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: S, owner: type) -> T: ...

    def __get__(self, instance: S | None, owner: type) -> T | Self:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self._work(instance)
        return value


# --- Values as short text ---

TEXT = 120
"""The number of characters of a text that are shown."""

ITEMS = 4
"""The number of items of a collection that are shown."""


class ShortRepr(msgspec.Struct, frozen=True):
    """A Struct with a short repr for large values."""

    def __repr__(self) -> str:
        shown = [
            f"{name}={short(value)}"
            for name, default in _defaults(type(self)).items()
            if (value := getattr(self, name)) is not default and value != default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, object]:
    """The fields and their defaults. A field without a default gets a marker that equals no value."""
    defaults: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        made = field.default_factory
        defaults[field.name] = field.default if made is msgspec.NODEFAULT else made()
    return defaults


def short(value: object) -> str:
    """Format a value as text, cut short."""
    match value:
        case Enum():
            return repr(value.value)
        case str():
            return _text(value)
        case bytes() | bytearray() | memoryview() | msgspec.Raw():
            return f"<{len(memoryview(value)):,} bytes>"
        case tuple():
            comma = "," if len(value) == 1 else ""
            return f"({_some(map(short, value), len(value))}{comma})"
        case list() | array():
            return f"[{_some(map(short, value), len(value))}]"
        case Mapping():
            pairs = (f"{short(name)}: {short(each)}" for name, each in value.items())
            return f"{{{_some(pairs, len(value))}}}"
        case _:
            return repr(value)


def _text(value: str) -> str:
    if len(value) <= TEXT:
        return repr(value)
    return f"{value[:TEXT]!r}… {len(value) - TEXT:,} more"


def _some(shown: Iterable[str], count: int) -> str:
    texts = list(islice(shown, ITEMS))
    more = [f"… {count - ITEMS:,} more"] if count > ITEMS else []
    return ", ".join([*texts, *more])

"""The type of a decoded JSON value, and how large one is."""

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


T = TypeVar("T")
S = TypeVar("S")


class kept(Generic[S, T]):
    """A property that is kept with its object.

    So does functools' `cached_property`, which before Python 3.12 takes a lock each time. Here two threads that
    ask at once may both work it out.

    Args:
        work: The method.
    """

    def __init__(self, work: Callable[[S], T]) -> None:
        self._work = work
        self._name = work.__name__
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: S, owner: type) -> T: ...

    def __get__(self, instance: S | None, owner: type) -> T | Self:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._work(instance)
        return value


# Values as text that fits a screen

TEXT = 120
"""The characters of a text that are shown."""

ITEMS = 4
"""The items of a collection that are shown."""


class Shown(msgspec.Struct, frozen=True):
    """A Struct that may be large, and whose repr is short."""

    def __repr__(self) -> str:
        shown = [
            f"{name}={short(value)}"
            for name, default in _defaults(type(self)).items()
            if (value := getattr(self, name)) is not default and value != default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, object]:
    """The fields and their defaults; a field without a default has one that equals nothing."""
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        made = field.default_factory
        found[field.name] = field.default if made is msgspec.NODEFAULT else made()
    return found


def short(value: object) -> str:
    """A value as text, cut short."""
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

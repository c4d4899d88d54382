"""Values as text that fits a screen: defaults are left out, and long texts, bytes and lists are cut short.

A conversation may hold megabytes, and its parts are printed by debuggers, notebooks, logs and failing tests.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from itertools import islice

import msgspec

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

"""Values of the vendors' SDK types, generated from the types: with all fields, and small."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Union

from callboard.bus.values.base import Json, JsonObject
from scripts.wire_coverage import bare, fields, is_list, members_of

_PLAIN: Mapping[Any, Json] = {str: "text", int: 1, float: 0.5, bool: True, type(None): None}


def sample(kind: Any, depth: int = 8) -> Json:
    """A value of a type. For a union it is the first member that isn't null; for several constants the first."""
    kind = bare(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return typing.get_args(kind)[0]
    if origin in (Union, types.UnionType):
        return sample(next(inner for inner in typing.get_args(kind) if inner is not type(None)), depth)
    if is_list(kind):
        return [sample(typing.get_args(kind)[0], depth - 1)] if depth > 0 else []
    if found := fields(kind):
        return {name: sample(inner, depth - 1) for name, inner in found.items() if depth > 0}
    if origin is not None and issubclass(origin, Mapping):
        return {"key": sample(typing.get_args(kind)[1], depth - 1)}
    return _PLAIN.get(kind, {"key": "value"} if isinstance(kind, type) and issubclass(kind, Mapping) else "text")


def samples(kind: Any) -> list[JsonObject]:
    """A value of each member of a union, without constants."""
    found = [sample(member) for member in members_of(kind) if fields(member)]
    return [value for value in found if isinstance(value, dict)]


def at(value: Any, path: str) -> Any:
    """The value at a dotted path."""
    for key in path.split("."):
        value = value[key]
    return value


def nested(path: str, value: Json) -> JsonObject:
    """An object that contains only this value, at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def paths(value: Json, above: str = "") -> Iterator[str]:
    """The dotted paths of all fields at any depth, except fields inside lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{above}{key}"
            yield from paths(inner, f"{above}{key}.")


def objects(value: Json) -> Iterator[JsonObject]:
    """All objects in a body, at any depth."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(inner)

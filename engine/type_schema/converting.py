"""The conversion of JSON values to Python types."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, TypeVar, overload

import msgspec

from callboard.bus.values.base import Json

from .fitting import Refused, SchemaError, Whole, described_by, fitted, is_model, validate
from .json_schema import json_path, json_schema

T = TypeVar("T")

_PLACE = re.compile(r"(.*) - at `(\$.*)`\Z", re.DOTALL)
"""The place of an error in a message of msgspec."""


@overload
def convert(value: Json, to: type[T]) -> T: ...


@overload
def convert(value: Json, to: object) -> Any: ...


def convert(value: Json, to: object) -> Any:
    """The value as an instance of the type.

    A whole number may be written ``3.0``, as JSON allows. Unknown keys of the value are ignored, unless the type
    forbids them.
    """
    try:
        return _converted(value, to)
    except RecursionError:
        raise ValueError("$: it is nested too deeply to be converted") from None
    except (TypeError, NotImplementedError) as error:
        raise SchemaError(str(error)) from error
    except ValueError as error:
        whole = _with_whole_numbers(value)
        if whole is not value:
            try:
                return _converted(whole, to)
            except ValueError:
                pass  # the first error is about the value that was given
        raise ValueError(_explained(error)) from error


def _converted(value: Json, to: object) -> Any:
    if is_model(to):
        return validate(value, to)
    return msgspec.convert(value, fitted(to), str_keys=True, dec_hook=_custom)


def _custom(to: object, value: Json) -> object:
    """The hook of msgspec for types that it doesn't support itself."""
    if is_model(to):
        return validate(value, to)
    if (described := described_by(to)) is not None:
        return described.convert(value) if isinstance(described, Whole) else _chosen(value, described.members)
    if isinstance(to, type) and issubclass(to, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return to(value)
    if to is object:
        return value
    raise NotImplementedError(f"{to!r} can't be made of JSON")


def _chosen(value: Json, members: tuple[Any, ...]) -> object:
    """The value as an instance of a member of a union.

    If several members accept a value, the one with the most matching names is taken, then the first.
    """
    names = value.keys() if isinstance(value, dict) else frozenset[str]()
    faults: list[str] = []
    for member in sorted(members, key=lambda each: -len(_properties(each) & names)) if names else members:
        try:
            return convert(value, member)
        except ValueError as error:
            name = "null" if member is type(None) else getattr(member, "__name__", str(member))
            faults.append(f"{name}: {error}")
    raise Refused((((), f"it fits none of these: {'; '.join(faults)}"),))


def _properties(of: object) -> frozenset[str]:
    """The names of a type's members, as its schema has them."""
    properties = json_schema(of).get("properties")
    return frozenset(properties) if isinstance(properties, dict) else frozenset()


def _with_whole_numbers(value: Json) -> Json:
    """The same value with each ``3.0`` as ``3``. Without any, the same object."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            items = [_with_whole_numbers(item) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        case dict():
            members = {name: _with_whole_numbers(item) for name, item in value.items()}
            return value if all(members[name] is value[name] for name in value) else members
        case _:
            return value


def _explained(error: ValueError) -> str:
    refused = error if isinstance(error, Refused) else error.__cause__
    text, place = str(error), "$"
    if found := _PLACE.match(text):
        text, place = found[1], found[2]
    if isinstance(refused, Refused):
        return "; ".join(f"{json_path(steps, place)}: {fault}" for steps, fault in refused.faults)
    return f"{place}: {text.replace('`', '')}"

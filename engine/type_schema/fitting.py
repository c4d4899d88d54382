"""Converts type hints that msgspec refuses to a form that it accepts.

msgspec refuses unions of several dataclasses, of untagged Structs, and of foreign classes, such as pydantic's.
`fitted` replaces each part of a hint that msgspec refuses with a stand-in. A stand-in is a class without
instances, which msgspec passes to its hooks. There are two kinds:

    Whole     pydantic describes and converts the part, because it contains a pydantic type or only pydantic can
    Choice    the members of a union are tried one after the other
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator
from typing import Any, Protocol, TypeGuard, cast

import msgspec

from callboard.bus.errors import CallboardError
from callboard.bus.values.base import Json, JsonObject


class SchemaError(CallboardError, TypeError):
    """No JSON Schema can express a type, or a schema is malformed. The text states what to do."""


# --- Recognizing pydantic's classes ---


class _Model(Protocol):
    """The class methods of pydantic 2 that this module calls."""

    def model_json_schema(self) -> JsonObject: ...

    def model_validate_json(self, json_data: bytes) -> object: ...


def is_model(of: object) -> TypeGuard[_Model]:
    """Whether a type is a pydantic model, or another type with the same methods."""
    # this is called for every conversion, and looking up two names is far cheaper than checking the protocol
    return isinstance(of, type) and hasattr(of, "model_json_schema") and hasattr(of, "model_validate_json")


def model_schema(model: _Model) -> JsonObject:
    """The model's JSON Schema. Raises SchemaError."""
    try:
        return model.model_json_schema()
    except Exception as error:  # pydantic's own exceptions, which this module doesn't import
        raise SchemaError(str(error).partition("\n")[0]) from error


class Refused(ValueError):
    """A model's own validation failed.

    Args:
        faults: The problems, each with its path in the value.
    """

    def __init__(self, faults: tuple[tuple[tuple[str | int, ...], str], ...]) -> None:
        super().__init__("; ".join(text for _, text in faults))
        self.faults = faults


def validate(value: Json, model: _Model) -> object:
    """Convert a JSON value to an instance of a model. Raises Refused.

    The model receives JSON text, not objects, so that a strict model accepts dates and enumerations in their JSON
    form.
    """
    try:
        return model.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise Refused(faults_of(error)) from error


def faults_of(error: ValueError) -> tuple[tuple[tuple[str | int, ...], str], ...]:
    """The problems that pydantic found, each with its path."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return (((), str(error)),)
    details = cast("list[dict[str, object]]", errors())
    return tuple(
        (cast("tuple[str | int, ...]", detail.get("loc", ())), str(detail.get("msg", ""))) for detail in details
    )


class _StandIn(type):
    """The metaclass of stand-ins. msgspec checks that the converted value is an instance of the stand-in, so every
    value is treated as an instance.
    """

    described: Whole | Choice

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def described_by(of: object) -> Whole | Choice | None:
    """The type that a stand-in replaces; None for any other type."""
    return of.described if isinstance(of, _StandIn) else None


def fitted(hint: Any) -> Any:
    """Convert a hint to a form that msgspec supports. A supported hint is returned unchanged.

    A hint that can't have a schema is returned unchanged, too, so that msgspec raises its own error.
    """
    try:
        return _remembered(hint)
    except TypeError:  # a hint that can't be hashed
        return _fitted(hint)


@functools.lru_cache(maxsize=256)
def _remembered(hint: Any) -> Any:
    return _fitted(hint)


def _fitted(hint: Any) -> Any:
    if is_model(hint) or isinstance(hint, _StandIn) or _is_taken(hint):
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        rebuilt = _without_constraints(hint) if _is_pydantics(hint) else None
        return _rebuilt(hint, arguments[:1], origin) if rebuilt is None else rebuilt
    if origin in (typing.Union, types.UnionType):
        rebuilt = _without_constraints(hint) if any(map(_is_pydantics, _classes(hint))) else None
        return _stand_in(hint, Choice(arguments)) if rebuilt is None else rebuilt
    if origin is not None and arguments:
        return _rebuilt(hint, arguments, origin)
    return _without_constraints(hint) or hint


def _is_taken(hint: Any) -> bool:
    """Whether msgspec supports a hint and all hints within it."""
    try:
        msgspec.json.Decoder(hint)
    except (TypeError, NameError, RecursionError):
        return False
    return not _has_discriminator(hint)


def _has_discriminator(hint: Any) -> bool:
    return any(getattr(each, "discriminator", None) is not None for each in getattr(hint, "__metadata__", ()))


def _rebuilt(hint: Any, arguments: tuple[Any, ...], origin: Any) -> Any:
    """A generic hint with other arguments."""
    made = tuple(fitted(each) for each in arguments)
    if all(new is old for new, old in zip(made, arguments, strict=True)):
        return hint
    if origin is typing.Annotated:
        return typing.Annotated[(made[0], *hint.__metadata__)]
    if copy_with := getattr(hint, "copy_with", None):  # typing's own, such as Sequence
        return copy_with(made)
    return origin[made if len(made) > 1 else made[0]]


def _classes(hint: Any) -> Iterator[Any]:
    """A hint and all hints within its arguments."""
    yield hint
    for each in typing.get_args(hint):
        yield from _classes(each)


def _is_pydantics(hint: Any) -> bool:
    """Whether pydantic should interpret a hint: a pydantic class, dataclass or Field."""
    if any(type(each).__module__.partition(".")[0] == "pydantic" for each in getattr(hint, "__metadata__", ())):
        return True
    return isinstance(hint, type) and hasattr(hint, "__pydantic_core_schema__")


def _stand_in(hint: Any, described: Whole | Choice) -> Any:
    made = _StandIn(getattr(hint, "__name__", "Choice"), (), {})
    made.described = described
    return made


# --- The two kinds of stand-ins ---


class Whole:
    """A hint that pydantic describes and converts.

    Args:
        adapter: Its TypeAdapter.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def schema(self) -> JsonObject:
        """The JSON Schema. Raises SchemaError."""
        try:
            schema: JsonObject = self._adapter.json_schema()
        except Exception as error:  # pydantic's own exceptions
            raise SchemaError(str(error).partition("\n")[0]) from error
        return schema

    def convert(self, value: Json) -> object:
        """Convert a value to an instance. Raises Refused."""
        try:
            return self._adapter.validate_json(msgspec.json.encode(value))
        except ValueError as error:
            faults = tuple((_own_steps(steps, value), text) for steps, text in faults_of(error))
            raise Refused(faults) from error


def _without_constraints(hint: Any) -> Any | None:
    """The stand-in for a hint that pydantic supports; None if pydantic refuses it or is not installed."""
    try:
        import pydantic

        adapter = pydantic.TypeAdapter(hint)
        adapter.json_schema()
    except Exception:  # pydantic is missing, or refuses the hint
        return None
    return _stand_in(hint, Whole(adapter))


def _own_steps(steps: tuple[str | int, ...], value: Json) -> tuple[str | int, ...]:
    """The path of a problem, without the names of union members that pydantic inserts."""
    found: list[str | int] = []
    for number, step in enumerate(steps):
        if isinstance(value, dict) and step in value:
            value = value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        elif number < len(steps) - 1 or not isinstance(value, dict):  # the last step may be a missing member
            continue
        found.append(step)
    return tuple(found)


class Choice(msgspec.Struct, frozen=True):
    """A union with members that are tried one after the other."""

    members: tuple[Any, ...]

"""pydantic's classes, known by their methods: whoever passes one has imported pydantic, nobody else needs to."""

from __future__ import annotations

from typing import Protocol, TypeGuard, cast

import msgspec

from callboard.bus.values.json import Json, JsonObject

from .errors import SchemaError


class _Model(Protocol):
    """The class methods of pydantic 2 that we call."""

    def model_json_schema(self) -> JsonObject: ...

    def model_validate_json(self, json_data: bytes) -> object: ...


def is_model(of: object) -> TypeGuard[_Model]:
    """Whether a type is a pydantic model, or something else that has its methods."""
    # asked for every conversion: looking the two names up is far cheaper than checking against the protocol
    return isinstance(of, type) and hasattr(of, "model_json_schema") and hasattr(of, "model_validate_json")


def model_schema(model: _Model) -> JsonObject:
    """The model's JSON Schema. Raises SchemaError."""
    try:
        return model.model_json_schema()
    except Exception as error:  # of pydantic's own kinds, which we don't import
        raise SchemaError(str(error).partition("\n")[0]) from error


class Refused(ValueError):
    """A model's own validation failed.

    Args:
        faults: The faults. Each is a place in the value, and what is wrong there.
    """

    def __init__(self, faults: tuple[tuple[tuple[str | int, ...], str], ...]) -> None:
        super().__init__("; ".join(text for _, text in faults))
        self.faults = faults


def validate(value: Json, model: _Model) -> object:
    """The model's instance of a JSON value. Raises Refused.

    It is given JSON text, not objects, so that a strict model takes dates and enumerations as JSON has them.
    """
    try:
        return model.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise Refused(faults_of(error)) from error


def faults_of(error: ValueError) -> tuple[tuple[tuple[str | int, ...], str], ...]:
    """The faults that a validation of pydantic found, each with its place."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return (((), str(error)),)
    details = cast("list[dict[str, object]]", errors())
    return tuple(
        (cast("tuple[str | int, ...]", detail.get("loc", ())), str(detail.get("msg", ""))) for detail in details
    )

"""Checks of values against JSON Schemas, and conversion to Python types."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, overload

import msgspec

from callboard.adapters.requests.schemas import map_subschemas
from callboard.bus.values.base import Json, JsonObject

from .type_schema import Model, SchemaError, Whole, described_by, fitted, is_model, json_schema

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator


# --- A quick check of plain schemas ---

Accepts: TypeAlias = Callable[[Any], bool]
"""A check for the values of one type, as an entry of a table by type."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SAY_NOTHING = {
    "$comment", "$defs", "default", "deprecated", "description", "examples", "format", "readOnly", "title",
    "writeOnly",
}  # fmt: skip
"""Keywords that reject no value. Formats are not checked. A schema with a reference is not plain."""

_PLAIN = {
    "$schema", "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems",
    "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
}  # fmt: skip

_KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")


def accepting(schema: Json) -> Accepts | None:
    """A function that returns True only for values that follow the schema; None if the schema is not plain."""
    if schema is True:
        return _anything
    if not isinstance(schema, dict) or not schema.keys() <= _SAY_NOTHING | _PLAIN:
        return None
    if schema.get("$schema", _DIALECT) != _DIALECT:
        return None
    named = schema.get("type", list(_KINDS))
    by_type: dict[type, Accepts] = {}
    for kind in _KINDS:  # an integer is also a number, so `number` is checked after it
        if kind == named or (isinstance(named, list) and kind in named):
            made = _of_kind(kind, schema)
            if made is None:
                return None
            by_type.update(made)
    if not _narrow(by_type, schema):
        return None

    def accepts(value: Json) -> bool:
        judge = by_type.get(type(value))
        return judge is not None and judge(value)

    return accepts


def _anything(value: object) -> bool:
    return True


def _of_kind(kind: str, schema: JsonObject) -> dict[type, Accepts] | None:
    """The checks for one of JSON's types, by the Python types of its values; None if the schema is not plain."""
    match kind:
        case "null":
            return {NoneType: _anything}
        case "boolean":
            return {bool: _anything}
        case "string":
            return {str: _sized(_bound(schema, "minLength"), _bound(schema, "maxLength"))}
        case "integer":
            within = _number(schema)
            return {int: within, float: lambda value: value.is_integer() and within(value)}
        case "number":
            return {int: _number(schema), float: _number(schema)}
        case "array":
            items = _array(schema)
            return None if items is None else {list: items}
        case _:
            fields = _object(schema)
            return None if fields is None else {dict: fields}


def _narrow(by_type: dict[type, Accepts], schema: JsonObject) -> bool:
    """Keep only the texts and nulls that the schema lists. Returns False if it lists other values, because their
    equality is more complex.
    """
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if listed is None:
        return True
    if not isinstance(listed, list) or not all(type(each) in (str, NoneType) for each in listed):
        return False
    if "enum" in schema and "const" in schema:
        return False
    texts = frozenset(each for each in listed if each is not None)
    text, null = by_type.get(str), by_type.get(NoneType)
    by_type.clear()
    if text is not None:
        by_type[str] = lambda value: value in texts and text(value)
    if null is not None and None in listed:
        by_type[NoneType] = null
    return True


def _number(schema: JsonObject) -> Accepts:
    low, above = _bound(schema, "minimum"), _bound(schema, "exclusiveMinimum")
    high, below = _bound(schema, "maximum"), _bound(schema, "exclusiveMaximum")
    if low is above is high is below is None:
        return _anything

    def within(value: float) -> bool:
        return (
            (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
            and (below is None or value < below)
        )

    return within


def _bound(schema: JsonObject, name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) else None


def _sized(least: float | None, most: float | None) -> Accepts:
    if least is most is None:
        return _anything

    def fits(value: str | list[Json]) -> bool:
        size = len(value)
        return (least is None or size >= least) and (most is None or size <= most)

    return fits


def _array(schema: JsonObject) -> Accepts | None:
    fits, item = (
        _sized(_bound(schema, "minItems"), _bound(schema, "maxItems")),
        accepting(schema.get("items", True)),
    )
    if item is None:
        return None
    return lambda value: fits(value) and all(map(item, value))


def _object(schema: JsonObject) -> Accepts | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    other = _nothing if others is False else accepting(others)
    if not isinstance(properties, dict) or not isinstance(required, list) or other is None:
        return None
    fields: dict[str, Accepts] = {}
    for name, field in properties.items():
        made = accepting(field)
        if made is None:
            return None
        fields[name] = made
    find, needed = fields.get, tuple(required)

    def accepts(value: dict[str, Json]) -> bool:
        for name in needed:
            if name not in value:
                return False
        return all(find(name, other)(item) for name, item in value.items())

    return accepts


def _nothing(value: object) -> bool:
    return False


# --- Checks ---

REPORTED = 5
"""The maximum number of problems that are reported for one value, so that a repeated mistake doesn't fill the
text.
"""

LONGEST_FAULT = 300
"""The maximum number of characters of a problem's text. jsonschema includes the value in the text."""


def check(value: Json, schema: JsonObject) -> None:
    """Check that a value follows a schema.

    Formats are not checked, nor patterns that Python can't read. No reference is fetched.
    """
    from referencing.exceptions import Unresolvable

    entry = _entry_of(schema)
    if entry.accepts is not None and entry.accepts(value):
        return
    try:
        faults = list(islice(entry.validator.iter_errors(value), REPORTED))
    except RecursionError:
        raise ValueError("$: it is nested too deeply to be checked") from None
    except Unresolvable as error:
        raise SchemaError(
            f"the schema refers to {error.ref.lstrip('/#')!r}, which it does not define. Add it to $defs"
        ) from error
    if faults:
        raise ValueError("; ".join(_fault_text(fault) for fault in faults))


def check_schema(schema: JsonObject) -> None:
    """Raise SchemaError unless it is a JSON Schema."""
    _entry_of(schema)


@dataclass(frozen=True)
class _Known:
    """A parsed schema. `accepts` is the quick check, if the schema is plain."""

    validator: Validator
    accepts: Accepts | None


def _entry_of(schema: JsonObject) -> _Known:
    try:
        text = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"a JSON Schema consists of JSON values only: {error}") from error
    try:
        return _remembered(text)
    except RecursionError:
        raise SchemaError("not a JSON Schema: it is nested too deeply to be read") from None


@functools.lru_cache(maxsize=256)
def _remembered(schema: bytes) -> _Known:
    """Parse a schema. The result is cached, because equal schemas recur as different objects."""
    from jsonschema.exceptions import SchemaError as WrongSchema
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    read = _with_own_patterns(msgspec.json.decode(schema, type=JsonObject))
    if not isinstance(dialect := read.get("$schema", ""), str):  # validator_for would fail on such a schema
        where = json_path(("$schema",))
        raise SchemaError(f"not a JSON Schema: {where}: {_shortened(repr(dialect))} is not of type 'string'")
    kind = validator_for(read, default=Draft202012Validator)
    try:
        kind.check_schema(read)
    except WrongSchema as error:
        where = json_path(error.absolute_path)
        raise SchemaError(f"not a JSON Schema: {where}: {_shortened(error.message)}") from error
    validator = kind(
        read, registry=Registry()
    )  # The registry is empty, because jsonschema's own would fetch references.
    return _Known(validator, accepting(read))


def _with_own_patterns(schema: JsonObject) -> JsonObject:
    """The schema without patterns that Python can't read. JSON Schema uses JavaScript's patterns."""
    keywords = {name: value for name, value in schema.items() if name != "pattern" or _is_pattern(value)}
    if isinstance(named := keywords.get("patternProperties"), dict):
        keywords["patternProperties"] = {name: value for name, value in named.items() if _is_pattern(name)}
    return map_subschemas(keywords, _with_own_patterns)


def _is_pattern(value: Json) -> bool:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error:
            return False
    return True  # also for values that are not text; the schema's own check reports them


def _fault_text(fault: ValidationError) -> str:
    from jsonschema.exceptions import best_match

    deepest = best_match([fault]) or fault  # the alternative that matched best
    return f"{json_path(deepest.absolute_path)}: {_shortened(deepest.message)}"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_FAULT:
        return text
    half = LONGEST_FAULT // 2
    return f"{text[:half]} … {text[-half:]}"


# --- Conversions ---

T = TypeVar("T")

_PLACE = re.compile(r"(.*) - at `(\$.*)`\Z", re.DOTALL)
"""The path of an error in a message of msgspec."""


@overload
def convert(value: Json, to: type[T]) -> T: ...


@overload
def convert(value: Json, to: object) -> Any: ...


def convert(value: Json, to: object) -> Any:
    """Convert a value to an instance of a type.

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
        as_integers = _with_whole_numbers(value)
        if as_integers is not value:
            try:
                return _converted(as_integers, to)
            except ValueError:
                pass  # the first error describes the original value
        raise ValueError(_explained(error)) from error


def _converted(value: Json, to: object) -> Any:
    if is_model(to):
        return validate(value, to)
    return msgspec.convert(value, fitted(to), str_keys=True, dec_hook=_custom)


def _custom(to: object, value: Json) -> object:
    """The hook of msgspec for types that msgspec doesn't support itself."""
    if is_model(to):
        return validate(value, to)
    if (described := described_by(to)) is not None:
        return (
            _by_pydantic(value, described.adapter)
            if isinstance(described, Whole)
            else _chosen(value, described.members)
        )
    if isinstance(to, type) and issubclass(to, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return to(value)
    if to is object:
        return value
    raise NotImplementedError(f"{to!r} can't be built from JSON")


def _chosen(value: Json, members: tuple[Any, ...]) -> object:
    """Convert a value to an instance of a member of a union.

    If several members accept the value, the member with the most matching names is used. If these are equal, the
    first one is used.
    """
    names = value.keys() if isinstance(value, dict) else frozenset[str]()
    faults: list[str] = []
    for member in sorted(members, key=lambda each: -len(_properties(each) & names)) if names else members:
        try:
            return convert(value, member)
        except ValueError as error:
            name = "null" if member is type(None) else getattr(member, "__name__", str(member))
            faults.append(f"{name}: {error}")
    raise Refused((((), f"it matches none of these: {'; '.join(faults)}"),))


def _properties(of: object) -> frozenset[str]:
    properties = json_schema(of).get("properties")
    return frozenset(properties) if isinstance(properties, dict) else frozenset()


def _with_whole_numbers(value: Json) -> Json:
    """The same value with each ``3.0`` as ``3``. Without such a number, the same object is returned."""
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


# --- Validation by pydantic ---


class Refused(ValueError):
    """A model's own validation failed. Each problem has its path in the value."""

    def __init__(self, faults: tuple[tuple[tuple[str | int, ...], str], ...]) -> None:
        super().__init__("; ".join(text for _, text in faults))
        self.faults = faults


def validate(value: Json, model: Model) -> object:
    """Convert a JSON value to an instance of a model. Raises Refused.

    The model receives JSON text, not objects, so that a strict model accepts dates and enumerations in their JSON
    form.
    """
    try:
        return model.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise Refused(faults_of(error)) from error


def faults_of(error: ValueError) -> tuple[tuple[tuple[str | int, ...], str], ...]:
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return (((), str(error)),)
    details = cast("list[dict[str, object]]", errors())
    return tuple(
        (cast("tuple[str | int, ...]", detail.get("loc", ())), str(detail.get("msg", ""))) for detail in details
    )


def _by_pydantic(value: Json, adapter: Any) -> object:
    """Convert a value with a TypeAdapter. Raises Refused."""
    try:
        converted: object = adapter.validate_json(msgspec.json.encode(value))
    except ValueError as error:
        faults = tuple((_own_steps(steps, value), text) for steps, text in faults_of(error))
        raise Refused(faults) from error
    return converted


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


def json_path(steps: Iterable[str | int], start: str = "$") -> str:
    """The path of keys and indexes, from the root of a value or from another path."""
    path = start
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if step.isidentifier() else f"[{step!r}]"
    return path

"""Values checked against JSON Schemas."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from callboard.adapters.schemas.sanitizer import map_subschemas
from callboard.bus.values.json import Json, JsonObject

from .accepting import Accepts, accepting
from .errors import SchemaError
from .paths import json_path

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

REPORTED = 5
"""As many faults of one value are told, lest a long list with one mistake in each item fill the text."""

LONGEST_FAULT = 300
"""The largest number of characters of a fault's text. jsonschema puts the wrong value into the text."""


def check(value: Json, schema: JsonObject) -> None:
    """Require that a value follows a schema.

    Formats are not checked, nor patterns that Python can't read. No reference is fetched.

    Raises:
        ValueError: The value doesn't follow the schema. The text names each fault with its JSON path.
        SchemaError: The schema itself is wrong.
    """
    from referencing.exceptions import Unresolvable

    known = _known(schema)
    if known.accepts is not None and known.accepts(value):
        return
    try:
        faults = list(islice(known.validator.iter_errors(value), REPORTED))
    except RecursionError:
        raise ValueError("$: it is nested too deeply to be checked") from None
    except Unresolvable as error:
        raise SchemaError(
            f"the schema refers to {error.ref.lstrip('/#')!r}, which is not in it; put it into $defs"
        ) from error
    if faults:
        raise ValueError("; ".join(_told(fault) for fault in faults))


def check_schema(schema: JsonObject) -> None:
    """Raise SchemaError unless it is a JSON Schema."""
    _known(schema)


@dataclass(frozen=True)
class _Known:
    """A schema that was read. `accepts` is the quick check for a plain schema."""

    validator: Validator
    accepts: Accepts | None


def _known(schema: JsonObject) -> _Known:
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
    """A schema, read. The same schemas come again and again, as equal objects, not as the same."""
    from jsonschema.exceptions import SchemaError as WrongSchema
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    read = _with_own_patterns(msgspec.json.decode(schema, type=JsonObject))
    if not isinstance(dialect := read.get("$schema", ""), str):  # validator_for would fail on it
        where = json_path(("$schema",))
        raise SchemaError(f"not a JSON Schema: {where}: {_shortened(repr(dialect))} is not of type 'string'")
    kind = validator_for(read, default=Draft202012Validator)
    try:
        kind.check_schema(read)
    except WrongSchema as error:
        where = json_path(error.absolute_path)
        raise SchemaError(f"not a JSON Schema: {where}: {_shortened(error.message)}") from error
    validator = kind(read, registry=Registry())  # an empty one: jsonschema's own would fetch what is referred to
    return _Known(validator, accepting(read))


def _with_own_patterns(schema: JsonObject) -> JsonObject:
    """The schema without the patterns that Python can't read: JSON Schema has those of JavaScript."""
    kept = {name: value for name, value in schema.items() if name != "pattern" or _is_pattern(value)}
    if isinstance(named := kept.get("patternProperties"), dict):
        kept["patternProperties"] = {name: value for name, value in named.items() if _is_pattern(name)}
    return map_subschemas(kept, _with_own_patterns)


def _is_pattern(value: Json) -> bool:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error:
            return False
    return True  # also of what is no text, of which the schema's own check will tell


def _told(fault: ValidationError) -> str:
    from jsonschema.exceptions import best_match

    deepest = best_match([fault]) or fault  # of alternatives, the one that came nearest
    return f"{json_path(deepest.absolute_path)}: {_shortened(deepest.message)}"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_FAULT:
        return text
    half = LONGEST_FAULT // 2
    return f"{text[:half]} … {text[-half:]}"

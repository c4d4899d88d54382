"""JSON Schemas of Python types.

A type is a msgspec Struct, a dataclass, a TypedDict, an attrs or pydantic class, or any hint that combines them
with plain types. Pydantic is imported only if msgspec does not support a part of a hint. Several named values,
such as the parameters of a function, become one Struct with `msgspec.defstruct`.

msgspec refuses unions of several dataclasses, of untagged Structs, and of foreign classes, such as pydantic's.
`fitted` replaces each part of a hint that msgspec refuses with a stand-in. A stand-in is a class without
instances, which msgspec passes to its hooks. There are two kinds:

    Whole     pydantic describes and converts the part, because it contains a pydantic type or only pydantic can
    Choice    the members of a union are tried one after the other
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Protocol, TypeGuard

import msgspec
from msgspec import inspect as hints

from callboard.adapters.requests.schemas import map_subschemas
from callboard.bus.errors import CallboardError
from callboard.bus.values.base import Json, JsonObject


class SchemaError(CallboardError, TypeError):
    """No JSON Schema can express a type, or a schema is malformed. The text states what to do."""


# --- Recognizing pydantic's classes ---


class Model(Protocol):
    """The class methods of pydantic 2 that this module calls."""

    def model_json_schema(self) -> JsonObject: ...

    def model_validate_json(self, json_data: bytes) -> object: ...


def is_model(of: object) -> TypeGuard[Model]:
    """Whether a type is a pydantic model, or another type with the same methods."""
    # this is called for every conversion, and looking up two names is far cheaper than checking the protocol
    return isinstance(of, type) and hasattr(of, "model_json_schema") and hasattr(of, "model_validate_json")


def model_schema(model: Model) -> JsonObject:
    try:
        return model.model_json_schema()
    except Exception as error:  # pydantic's own exceptions, which this module doesn't import
        raise SchemaError(str(error).partition("\n")[0]) from error


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
        return _fitted_once(hint)
    except TypeError:  # a hint that can't be hashed
        return _fitted(hint)


@functools.lru_cache(maxsize=256)
def _fitted_once(hint: Any) -> Any:
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
    return not any(getattr(each, "discriminator", None) is not None for each in getattr(hint, "__metadata__", ()))


def _rebuilt(hint: Any, arguments: tuple[Any, ...], origin: Any) -> Any:
    made = tuple(fitted(each) for each in arguments)
    if all(new is old for new, old in zip(made, arguments, strict=True)):
        return hint
    if origin is typing.Annotated:
        return typing.Annotated[(made[0], *hint.__metadata__)]
    if copy_with := getattr(hint, "copy_with", None):  # typing's own, such as Sequence
        return copy_with(made)
    return origin[made if len(made) > 1 else made[0]]


def _classes(hint: Any) -> Iterator[Any]:
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


class Whole(msgspec.Struct, frozen=True):
    """A hint that pydantic describes and converts."""

    adapter: Any
    """Its TypeAdapter."""

    def schema(self) -> JsonObject:
        try:
            schema: JsonObject = self.adapter.json_schema()
        except Exception as error:  # pydantic's own exceptions
            raise SchemaError(str(error).partition("\n")[0]) from error
        return schema


def _without_constraints(hint: Any) -> Any | None:
    """The stand-in for a hint that pydantic supports; None if pydantic refuses it or is not installed."""
    try:
        import pydantic

        adapter = pydantic.TypeAdapter(hint)
        adapter.json_schema()
    except Exception:  # pydantic is missing, or refuses the hint
        return None
    return _stand_in(hint, Whole(adapter))


class Choice(msgspec.Struct, frozen=True):
    """A union with members that are tried one after the other."""

    members: tuple[Any, ...]


# --- Definitions of a schema ---

_PREFIX = "#/$defs/"


def lift_definitions(schema: JsonObject) -> JsonObject:
    """Move the ``$defs`` of subschemas to the schema's root, where the references point. Pure.

    If a name is already used, the definition gets a number.
    """
    lifted: JsonObject = {}
    definitions = schema.get("$defs")
    if isinstance(definitions, dict):
        lifted.update(definitions)
    root = _without_definitions(schema)
    body = map_subschemas(root, lambda inner: _lift(inner, lifted))
    for name in list(lifted):
        if isinstance(definition := lifted[name], dict):
            lifted[name] = _lift(definition, lifted)
    return {**body, "$defs": lifted} if lifted else body


def _lift(schema: JsonObject, lifted: JsonObject) -> JsonObject:
    definitions = schema.get("$defs")
    if isinstance(definitions, dict):
        names = {name: _free_name(name, value, lifted) for name, value in definitions.items()}
        for name, value in definitions.items():
            lifted[names[name]] = _renamed(value, names)
        renamed = _renamed(_without_definitions(schema), names)
        schema = renamed if isinstance(renamed, dict) else schema
    return map_subschemas(schema, lambda inner: _lift(inner, lifted))


def _free_name(name: str, definition: Json, lifted: JsonObject) -> str:
    free, number = name, 2
    while free in lifted and lifted[free] != definition:
        free, number = f"{name}{number}", number + 1
    return free


def _renamed(schema: Json, names: dict[str, str]) -> Json:
    if not isinstance(schema, dict):
        return schema
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith(_PREFIX):
        name = target.removeprefix(_PREFIX)
        schema = {**schema, "$ref": _PREFIX + names.get(name, name)}
    return map_subschemas(schema, lambda inner: _as_object(_renamed(inner, names)))


def inline_root(schema: JsonObject) -> JsonObject:
    """If a schema's root is a reference, replace it with the definition, because providers require an object
    there. Pure.

    The definition is kept if another part refers to it.
    """
    definitions = schema.get("$defs")
    target = schema.get("$ref")
    if not isinstance(definitions, dict) or not isinstance(target, str) or not target.startswith(_PREFIX):
        return schema
    name = target.removeprefix(_PREFIX)
    definition = definitions.get(name)
    if not isinstance(definition, dict):
        return schema
    beside = {key: value for key, value in schema.items() if key not in ("$ref", "$defs")}
    root: JsonObject = {**definition, **beside}
    if not any(refers_to(value, target) for value in (root, *definitions.values())):
        definitions = {other: value for other, value in definitions.items() if other != name}
    return {**root, "$defs": definitions} if definitions else root


def refers_to(schema: Json, target: str) -> bool:
    """Whether a schema contains a reference to a target. Its ``$defs`` are searched, too."""
    if not isinstance(schema, dict):
        return False
    if schema.get("$ref") == target:
        return True
    found = False

    def look(inner: JsonObject) -> JsonObject:
        nonlocal found
        found = found or refers_to(inner, target)
        return inner

    map_subschemas(schema, look)
    return found


def _without_definitions(schema: JsonObject) -> JsonObject:
    return {name: value for name, value in schema.items() if name != "$defs"}


def _as_object(schema: Json) -> JsonObject:
    assert isinstance(schema, dict)
    return schema


# --- Schemas of types ---


class Moments:
    """Adds the formats of dates and times to the schemas of a type and of the classes within it."""

    def __init__(self, of: object) -> None:
        self._root = hints.type_info(of)
        self._classes: dict[object, _Fielded] = {}
        self._found = False
        self._look(self._root)

    @property
    def classes(self) -> tuple[Any, ...]:
        return tuple(self._classes) if self._found else ()

    def add_formats(self, root: JsonObject, references: Iterable[JsonObject], definitions: JsonObject) -> None:
        """Write the formats into the schemas, in place."""
        if not self._found:
            return
        _mark(self._root, root)
        for fielded, reference in zip(self._classes.values(), references, strict=True):
            definition = definitions[str(reference["$ref"]).removeprefix(_PREFIX)]
            assert isinstance(definition, dict)
            places = definition.get("properties") or definition.get("prefixItems")
            for number, field in enumerate(fielded.fields):
                if isinstance(places, dict):
                    _mark(field.type, places[field.encode_name])
                elif isinstance(places, list):
                    # fields for a tag may come before these fields
                    _mark(field.type, places[number - len(fielded.fields)])

    def _look(self, info: hints.Type) -> None:
        if isinstance(info, hints.DateTimeType | hints.TimeType):
            self._found = True
        if isinstance(info, _Fielded) and info.cls not in self._classes:
            self._classes[info.cls] = info
            for field in info.fields:
                self._look(field.type)
        for inner in _inner(info):
            self._look(inner)


_Fielded = hints.StructType | hints.DataclassType | hints.TypedDictType | hints.NamedTupleType


def _inner(info: hints.Type) -> Iterator[hints.Type]:
    match info:
        case hints.Metadata():
            yield info.type
        case hints.UnionType():
            yield from info.types
        case hints.CollectionType():
            yield info.item_type
        case hints.TupleType():
            yield from info.item_types
        case hints.DictType():
            yield info.value_type
        case _:
            pass


def _mark(info: hints.Type, schema: Json) -> None:
    """Find the strings of a schema that represent dates or times in its type. Classes are handled separately."""
    if not isinstance(schema, dict):
        return
    match info:
        case hints.Metadata():
            _mark(info.type, schema)
        case hints.DateTimeType() if info.tz is not False:  # the format includes a time zone
            schema.setdefault("format", "date-time")
        case hints.TimeType() if info.tz is not False:
            schema.setdefault("format", "time")
        case hints.CollectionType():
            _mark(info.item_type, schema.get("items"))
        case hints.DictType():
            _mark(info.value_type, schema.get("additionalProperties"))
        case hints.TupleType() if isinstance(items := schema.get("prefixItems"), list):
            for item_type, item in zip(info.item_types, items, strict=True):
                _mark(item_type, item)
        case hints.UnionType() if isinstance(options := schema.get("anyOf"), list):
            for member in info.types:  # msgspec has at most one of each kind in a union
                for option in options:
                    if isinstance(option, dict) and option.get("type") == _kind(member):
                        _mark(member, option)
        case _:
            pass


def _kind(info: hints.Type) -> str | None:
    match info:
        case hints.Metadata():
            return _kind(info.type)
        case hints.DateTimeType() | hints.TimeType():
            return "string"
        case hints.CollectionType() | hints.TupleType():
            return "array"
        case hints.DictType():
            return "object"
        case _:
            return None


_ADVICE = "use a dataclass, TypedDict, msgspec Struct, pydantic model or plain hints, or pass a JSON Schema"

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})

_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "enum"}
    | {"const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$defs", "definitions", "$schema"}
    | {"description", "title", "format", "minProperties", "maxProperties", "propertyNames", "$id", "default"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "minLength"}
    | {"maxLength", "minItems", "maxItems", "uniqueItems", "contains", "dependentSchemas"}
)


def json_schema(of: object) -> JsonObject:
    """The JSON Schema of a type, a hint, or a schema.

    The root is never a reference. Every other named type is in ``$defs``.
    """
    if isinstance(of, Mapping):
        return _checked_schema(of)
    try:
        text = _remembered(of)
    except SchemaError:
        raise
    except TypeError:
        text = _written(of)  # a hint that can't be hashed
    return msgspec.json.decode(text, type=JsonObject)


@functools.lru_cache(maxsize=256)
def _remembered(of: object) -> bytes:
    """The schema's text, cached, because the same types are passed with every call and a computation takes
    milliseconds.
    """
    return _written(of)


def _written(of: object) -> bytes:
    try:
        if is_model(of):
            return msgspec.json.encode(_tidied(model_schema(of)))
        schema, definitions = _of_hint(of)
    except (TypeError, NameError, RecursionError) as error:
        raise SchemaError(f"{_named(of)} has no JSON Schema: {_reason(error)}; {_ADVICE}") from error
    return msgspec.json.encode(_tidied({**schema, "$defs": definitions} if definitions else schema))


def _of_hint(of: object) -> tuple[JsonObject, JsonObject]:
    of = fitted(of)
    moments = Moments(of)
    (schema, *references), definitions = msgspec.json.schema_components(
        (of, *moments.classes), schema_hook=_custom, ref_template="#/$defs/{name}"
    )
    moments.add_formats(schema, references, definitions)
    return schema, definitions


def _custom(of: type) -> JsonObject:
    """The hook of msgspec for types that msgspec doesn't support itself."""
    if is_model(of):
        return model_schema(of)
    if (described := described_by(of)) is not None:
        if isinstance(described, Whole):
            return described.schema()
        return lift_definitions({"anyOf": [json_schema(member) for member in described.members]})
    if issubclass(of, PurePath):
        return {"type": "string"}
    if of is object:
        # Msgspec treats an empty schema as none; `_without_noise` removes this comment.
        return {"$comment": "any value"}
    raise SchemaError(f"{_named(of)} has no JSON form")


def _tidied(schema: JsonObject) -> JsonObject:
    return inline_root(lift_definitions(_without_noise(schema)))


def _without_noise(schema: JsonObject) -> JsonObject:
    """A schema without generated parts that no model needs: titles that repeat a name, pointers to tags, and the
    indentation of docstrings."""
    keywords = {name: value for name, value in schema.items() if name not in ("discriminator", "$comment")}
    if isinstance(description := keywords.get("description"), str):
        keywords["description"] = inspect.cleandoc(description)
    if isinstance(properties := keywords.get("properties"), dict):
        keywords["properties"] = {name: _without_own_name(name, value) for name, value in properties.items()}
    return map_subschemas(keywords, _without_noise)


def _without_own_name(name: str, schema: Json) -> Json:
    if not isinstance(schema, dict) or not isinstance(title := schema.get("title"), str):
        return schema
    if title.replace(" ", "").lower() != name.replace("_", "").lower():
        return schema
    return {keyword: value for keyword, value in schema.items() if keyword != "title"}


def _checked_schema(schema: Mapping[object, object]) -> JsonObject:
    """Check a schema from the caller just enough to reject an invalid one."""
    if schema and not _KEYWORDS & schema.keys():
        names = ", ".join(repr(name) for name in list(schema)[:3])
        raise SchemaError(
            f"a mapping with {names} is not a JSON Schema. Did you mean "
            '{"type": "object", "properties": {...}, "required": [...]}?'
        )
    kinds = schema.get("type", "object")
    for kind in kinds if isinstance(kinds, list | tuple) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise SchemaError(f"{kind!r} is not a type of JSON Schema. The types are {', '.join(sorted(_TYPES))}")
    try:
        return msgspec.json.decode(msgspec.json.encode(dict(schema)), type=JsonObject)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"a JSON Schema consists of JSON values only: {error}") from error


def _named(of: object) -> str:
    return of.__qualname__ if isinstance(of, type) else str(of)


def _reason(error: Exception) -> str:
    match error:
        case SchemaError():
            return str(error)
        case RecursionError():
            return "it contains itself endlessly"
        case NameError():
            return f"{error} (names in hints must exist when the schema is built)"
        case _:
            return str(error).partition("\n")[0]

"""The definitions of a schema: all in one place, at the root, and the root itself no reference."""

from __future__ import annotations

from callboard.adapters.schemas.sanitizer import map_subschemas
from callboard.bus.values.json import Json, JsonObject

_PREFIX = "#/$defs/"


def lift_definitions(schema: JsonObject) -> JsonObject:
    """The schema with the ``$defs`` of its subschemas at its root, where their references look for them. Pure.

    A definition whose name is taken by another gets a number.
    """
    lifted: JsonObject = {}
    own = schema.get("$defs")
    if isinstance(own, dict):
        lifted.update(own)
    root = _without_definitions(schema)
    body = map_subschemas(root, lambda inner: _lift(inner, lifted))
    for name in list(lifted):
        lifted[name] = _each(lifted[name], lifted)
    return {**body, "$defs": lifted} if lifted else body


def _each(schema: Json, lifted: JsonObject) -> Json:
    return _lift(schema, lifted) if isinstance(schema, dict) else schema


def _lift(schema: JsonObject, lifted: JsonObject) -> JsonObject:
    own = schema.get("$defs")
    if isinstance(own, dict):
        names = {name: _free_name(name, value, lifted) for name, value in own.items()}
        for name, value in own.items():
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
    """The schema with its root written out where that is a reference: providers want an object there. Pure.

    The definition stays where something else refers to it.
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
    """Whether a schema, or a schema inside it, is a reference to a target. Its ``$defs`` count as inside."""
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

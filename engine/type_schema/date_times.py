"""Formats for datetimes and times. msgspec names them only if the hint says whether there is a timezone.

Without a format, models write dates in any form. But only the form of RFC 3339 can be read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect as hints

from callboard.bus.values.json import Json, JsonObject

_PREFIX = "#/$defs/"


class Moments:
    """The classes within a type. Their schemas are made together with the type's, and `add_formats` completes all
    of them.

    Args:
        of: The type.
    """

    def __init__(self, of: object) -> None:
        self._root = hints.type_info(of)
        self._classes: dict[object, _Fielded] = {}
        self._found = False
        self._look(self._root)

    @property
    def classes(self) -> tuple[Any, ...]:
        return tuple(self._classes) if self._found else ()

    def add_formats(self, root: JsonObject, references: Iterable[JsonObject], definitions: JsonObject) -> None:
        """Write the formats into the schemas, in place.

        Args:
            root: The schema of the type.
            references: The schemas of `classes`, in their order.
            definitions: The definitions that they refer to.
        """
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
                    _mark(field.type, places[number - len(fielded.fields)])  # a tag may stand before them

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
    """Follow a type and its schema down to where a moment is a string. Classes have their own place."""
    if not isinstance(schema, dict):
        return
    match info:
        case hints.Metadata():
            _mark(info.type, schema)
        case hints.DateTimeType() if info.tz is not False:  # the format has a timezone
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

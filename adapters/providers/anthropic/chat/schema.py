"""A JSON Schema as Anthropic's structured output and strict tools take it. This module is pure.

The grammar that holds a reply to a schema knows shapes and no sizes. Keywords such as ``minimum`` or ``maxLength``
are refused with status 400. So the description tells them to the model, and the caller checks the reply against
the whole schema. A schema can't be sent at all if the grammar can't express its shape (free keys, any value,
recursion).
"""

from __future__ import annotations

from collections.abc import Iterator

from callboard.adapters.schemas.memory import remembered
from callboard.adapters.schemas.sanitizer import describe, in_words, merge_all_of, normalise_schema
from callboard.adapters.schemas.strict import NotStrict
from callboard.bus.values.json import Json, JsonObject

_KEPT = frozenset({"type", "title", "enum", "const", "required"})
_WITHOUT_MEANING = frozenset({"$id", "deprecated", "readOnly", "writeOnly", "additionalProperties"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_DEFINITION = "#/$defs/"


@remembered
def fit_schema(schema: JsonObject) -> JsonObject | str:
    """The schema to send; or the text that says where and why there is none."""
    try:
        return _Fitter(normalise_schema(schema)).fit_root()
    except NotStrict as reason:
        return str(reason)


class _Fitter:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        definitions = root.get("$defs")
        self._definitions: JsonObject = definitions if isinstance(definitions, dict) else {}

    def fit_root(self) -> JsonObject:
        self._refuse_recursion()
        fitted = self._fit(self._root, "$")
        if self._definitions:
            fitted["$defs"] = {
                name: self._fit(value, f"$.$defs.{name}") for name, value in self._definitions.items()
            }
        return fitted

    def _fit(self, value: Json, path: str) -> JsonObject:
        """One schema, without its definitions."""
        if not isinstance(value, dict) or not value:
            raise NotStrict(f"{path}: a schema without a type, which any value would fit")
        schema = merge_all_of(value) if "allOf" in value else value
        if "$ref" in schema:
            return self._reference(schema, path)
        fitted: JsonObject = {}
        told: JsonObject = {}
        for name, inner in schema.items():
            if _is_kept(name, inner):
                fitted[name] = inner
            elif name in ("anyOf", "oneOf") and isinstance(inner, list):
                fitted["anyOf"] = [self._fit(part, f"{path}.anyOf[{at}]") for at, part in enumerate(inner)]
            elif name not in ("properties", "items", "description", "$defs", *_WITHOUT_MEANING):
                told[name] = inner
        self._write_shape(schema, fitted, path)
        if isinstance(said := schema.get("description"), str) and said:
            fitted["description"] = said
        return describe(fitted, in_words(told))

    def _write_shape(self, schema: JsonObject, fitted: JsonObject, path: str) -> None:
        """The parts of objects and arrays."""
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        if "object" in kinds or "properties" in schema:
            self._write_object(schema, fitted, path)
        if "array" in kinds:
            if "prefixItems" in schema:
                raise NotStrict(f"{path}: an array with a schema for each place")
            fitted["items"] = self._fit(schema.get("items"), f"{path}.items")
        if not fitted.keys() & {"type", "properties", "anyOf", "enum", "const"}:
            raise NotStrict(f"{path}: a schema without a type, which any value would fit")

    def _write_object(self, schema: JsonObject, fitted: JsonObject, path: str) -> None:
        properties = schema.get("properties")
        free = schema.get("additionalProperties", "properties" not in schema)
        if isinstance(free, dict) or "patternProperties" in schema or (free is True and not properties):
            raise NotStrict(f"{path}: an object with free keys")
        fitted["properties"] = {
            name: self._fit(inner, f"{path}.properties.{name}")
            for name, inner in (properties if isinstance(properties, dict) else {}).items()
        }
        fitted["additionalProperties"] = False

    def _reference(self, schema: JsonObject, path: str) -> JsonObject:
        """A reference, alone as it has to be. What is said beside it goes around it."""
        target = schema["$ref"]
        if not isinstance(target, str) or target.removeprefix(_DEFINITION) not in self._definitions:
            raise NotStrict(f"{path}: a reference to {target!r}, which is no definition of the schema")
        ignored = {"$ref", "$defs", "description", "title", *_WITHOUT_MEANING}
        told = {name: inner for name, inner in schema.items() if name not in ignored}
        said = schema.get("description")
        around = describe({"description": said} if isinstance(said, str) and said else {}, in_words(told))
        return {**around, "anyOf": [{"$ref": target}]} if around else {"$ref": target}

    def _refuse_recursion(self) -> None:
        for name in self._definitions:
            seen: set[str] = set()
            waiting = [name]
            while waiting:
                for target in _references(self._definitions.get(waiting.pop())):
                    if target == name:
                        raise NotStrict(f"$.$defs.{name}: a definition that holds itself")
                    if target not in seen:
                        seen.add(target)
                        waiting.append(target)


def _is_kept(name: str, value: Json) -> bool:
    match name:
        case "enum":
            return isinstance(value, list) and not any(isinstance(entry, dict | list) for entry in value)
        case "const":
            return not isinstance(value, dict | list)
        case "format":
            return value in _FORMATS
        case "minItems":
            return value in (0, 1)
        case _:
            return name in _KEPT


def _references(value: Json) -> Iterator[str]:
    """The names of the definitions that a schema refers to."""
    if isinstance(value, list):
        for part in value:
            yield from _references(part)
    elif isinstance(value, dict):
        if isinstance(target := value.get("$ref"), str):
            yield target.removeprefix(_DEFINITION)
        for inner in value.values():
            yield from _references(inner)

"""A JSON Schema as Gemini takes it.

Gemini takes a part of JSON Schema, in `parametersJsonSchema` and `responseJsonSchema`. A keyword that has an equal
in that part is rewritten. The description tells the model of any other constraint. Keywords that Gemini takes stay
as they are.
"""

from __future__ import annotations

from callboard.adapters.schemas.memory import remembered
from callboard.adapters.schemas.sanitizer import describe, in_words, merge_all_of, normalise_schema
from callboard.bus.values.json import Json, JsonObject

_KEPT = frozenset(
    {"$id", "$anchor", "type", "format", "title", "enum", "required", "minItems", "maxItems", "minimum", "maximum"}
    | {"minLength", "maxLength", "pattern", "minProperties", "maxProperties", "default", "nullable", "example"}
    | {"propertyOrdering"}
)
_WITHOUT_MEANING = frozenset({"deprecated", "readOnly", "writeOnly"})
"""Keywords that constrain nothing, and tell a model nothing."""


def fit_schema(schema: JsonObject) -> JsonObject:
    """The schema to send. Pure; the same object if all of it is taken.

    Remembered, because five tools of three parameters take 80 µs.
    """
    fitted = _fitted(schema)
    return schema if fitted is None else fitted


@remembered
def _fitted(schema: JsonObject) -> JsonObject | None:
    """None if all of it is taken."""
    written = normalise_schema(schema)
    fitted = _Fitter(written).fit(written, at_root=True)
    return None if fitted == schema else fitted


def takes_nothing(schema: JsonObject) -> bool:
    """True of an object without properties, which some models want left out altogether."""
    return not schema.get("properties") and schema.keys() <= {
        "type", "properties", "additionalProperties", "required", "title", "$schema", "description",
    } and schema.get("additionalProperties") in (None, False)  # fmt: skip


class _Fitter:
    def __init__(self, root: JsonObject) -> None:
        definitions = root.get("$defs")
        self._definitions = definitions if isinstance(definitions, dict) else {}

    def fit(self, schema: JsonObject, *, at_root: bool = False) -> JsonObject:
        if "allOf" in schema:
            schema = merge_all_of(schema)
        if "$ref" in schema:
            fitted = self._reference(schema)
        else:
            words: list[str] = []
            fitted = {}
            for name, value in _with_inclusive_bounds(schema).items():
                self._keyword(name, value, fitted, words)
            fitted = describe(fitted, words)
        if at_root and self._definitions:
            fitted["$defs"] = {name: self._fit(value) for name, value in self._definitions.items()}
        return fitted

    def _fit(self, value: Json) -> Json:
        if isinstance(value, dict):
            return self.fit(value)
        return {} if value is True else value

    def _keyword(self, name: str, value: Json, fitted: JsonObject, words: list[str]) -> None:
        match name, value:
            case "$defs" | "definitions", _:
                pass  # they have their own place
            case "description", str():
                if value:
                    fitted[name] = value
            case _ if name in _KEPT:
                fitted[name] = value
            case "properties", dict():
                fitted[name] = {key: self._fit(inner) for key, inner in value.items()}
            case "items" | "additionalProperties", dict() | bool():
                fitted[name] = value if isinstance(value, bool) else self.fit(value)
            case "anyOf" | "oneOf" | "prefixItems", list():
                fitted[name] = [self._fit(inner) for inner in value]
            case "items", list():
                fitted["prefixItems"] = [self._fit(inner) for inner in value]
            case "const", str() | int() if not isinstance(value, bool):
                fitted["enum"] = [value]
            case "exclusiveMinimum" | "exclusiveMaximum", True:  # as it was before draft 6
                words.append("without the bound itself")
            case _ if name not in _WITHOUT_MEANING:
                words += in_words({name: value})

    def _reference(self, schema: JsonObject) -> JsonObject:
        """A reference, alone as it has to be: what stands beside it goes around it."""
        target = schema["$ref"]
        beside = {name: value for name, value in schema.items() if name not in ("$ref", "$defs", "definitions")}
        if not isinstance(target, str) or not self._knows(target):
            return describe(self.fit(beside), in_words({"$ref": target}))
        if not beside:
            return {"$ref": target}
        if "anyOf" in beside:
            return describe(self.fit(beside), in_words({"$ref": target}))
        return {**self.fit(beside), "anyOf": [{"$ref": target}]}

    def _knows(self, target: str) -> bool:
        return target == "#" or target.removeprefix("#/$defs/") in self._definitions


def _with_inclusive_bounds(schema: JsonObject) -> JsonObject:
    """Of integers, bounds that are excluded are as good as the next number included."""
    if schema.get("type") != "integer":
        return schema
    bounded = dict(schema)
    for name, bound, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        value, given = schema.get(name), schema.get(bound)
        if type(value) is int:
            del bounded[name]
            nearest = value + step
            if isinstance(given, int | float) and (given - nearest) * step > 0:
                bounded[bound] = given
            else:
                bounded[bound] = nearest
    return bounded

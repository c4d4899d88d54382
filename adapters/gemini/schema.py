"""A JSON Schema as Gemini takes it: what it can't take is said in words.

It takes a part of JSON Schema (in `parametersJsonSchema` and `responseJsonSchema`). What has an equal there is
rewritten; of any other constraint the description tells the model. Nothing that Gemini takes is touched.
"""

from __future__ import annotations

import re

import msgspec

from bus.json_types import Json, JsonObject

_KEPT = frozenset(
    {"$id", "$anchor", "type", "format", "title", "enum", "required", "minItems", "maxItems", "minimum", "maximum"}
    | {"minLength", "maxLength", "pattern", "minProperties", "maxProperties", "default", "nullable", "example"}
    | {"propertyOrdering"}
)
_WITHOUT_MEANING = frozenset({"$schema", "$comment", "$vocabulary", "deprecated", "readOnly", "writeOnly"})
"""Keywords that constrain nothing, and tell a model nothing."""

_IN_WORDS = {
    "exclusiveMinimum": "greater than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "const": "always {}",
    "examples": "for example {}",
    "not": "nothing that matches {}",
    "contentEncoding": "encoded as {}",
    "contentMediaType": "of media type {}",
}


def fit_schema(schema: JsonObject) -> JsonObject:
    """The schema to send. Pure; the same object if all of it is taken."""
    fitted = _Fitter(schema).fit(schema, at_root=True)
    return schema if fitted == schema else fitted


def takes_nothing(schema: JsonObject) -> bool:
    """True of an object without properties, which some models want left out altogether."""
    return not schema.get("properties") and schema.keys() <= {
        "type", "properties", "additionalProperties", "required", "title", "$schema", "description",
    } and schema.get("additionalProperties") in (None, False)  # fmt: skip


class _Fitter:
    def __init__(self, root: JsonObject) -> None:
        self._definitions = {**_mapping(root.get("definitions")), **_mapping(root.get("$defs"))}

    def fit(self, schema: JsonObject, *, at_root: bool = False) -> JsonObject:
        if "allOf" in schema:
            schema = _merged(schema)
        if "$ref" in schema:
            fitted = self._reference(schema)
        else:
            words: list[str] = []
            fitted = {}
            for name, value in _with_inclusive_bounds(schema).items():
                self._keyword(name, value, fitted, words)
            _describe(fitted, schema.get("description"), words)
        if at_root and self._definitions:
            fitted["$defs"] = {name: self._fit(value) for name, value in self._definitions.items()}
        return fitted

    def _fit(self, value: Json) -> Json:
        if isinstance(value, dict):
            return self.fit(value)
        return {} if value is True else value

    def _keyword(self, name: str, value: Json, fitted: JsonObject, words: list[str]) -> None:
        match name, value:
            case "description" | "$defs" | "definitions", _:
                pass  # each has its own place
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
            case "uniqueItems", True:
                words.append("no item twice")
            case _ if name in _WITHOUT_MEANING or value is None or value is False:
                pass
            case _ if name in _IN_WORDS:
                words.append(_IN_WORDS[name].format(_json(value)))
            case _:
                words.append(f"{name}: {_json(value)}")

    def _reference(self, schema: JsonObject) -> JsonObject:
        """A reference, alone as it has to be: what stands beside it goes around it."""
        target = schema["$ref"]
        target = re.sub(r"^#/definitions/", "#/$defs/", target) if isinstance(target, str) else ""
        known = target == "#" or target.removeprefix("#/$defs/") in self._definitions
        beside = {name: value for name, value in schema.items() if name not in ("$ref", "$defs", "definitions")}
        if not known:
            words = [f"$ref: {_json(schema['$ref'])}"]
            fitted = self.fit(beside)
            _describe(fitted, fitted.pop("description", None), words)
            return fitted
        if not beside:
            return {"$ref": target}
        if "anyOf" in beside:
            around = self.fit(beside)
            _describe(around, around.pop("description", None), [f"$ref: {_json(target)}"])
            return around
        return {**self.fit(beside), "anyOf": [{"$ref": target}]}


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


def _merged(schema: JsonObject) -> JsonObject:
    """A schema with its allOf written out; what contradicts stays in it, to be told in words."""
    parts = schema["allOf"]
    merged = {name: value for name, value in schema.items() if name != "allOf"}
    left: list[Json] = []
    for part in parts if isinstance(parts, list) else [parts]:
        inner = _merged(part) if isinstance(part, dict) and "allOf" in part else part
        if not isinstance(inner, dict) or not _join(merged, inner):
            left.append(part)
    if left:
        text = f"allOf: {_json(left)}"
        described = merged.get("description")
        merged["description"] = f"{described} ({text})" if isinstance(described, str) and described else text
    return merged


def _join(merged: JsonObject, part: JsonObject) -> bool:
    """Add a schema's constraints; False, and nothing added, if both say different things of one matter."""
    joined: JsonObject = {}
    for name, value in part.items():
        before = merged.get(name)
        if name not in merged or before == value:
            joined[name] = value
        elif name == "required" and isinstance(before, list) and isinstance(value, list):
            joined[name] = [*before, *(entry for entry in value if entry not in before)]
        elif (
            name in ("properties", "$defs", "definitions") and isinstance(before, dict) and isinstance(value, dict)
        ):
            if any(before[key] != value[key] for key in before.keys() & value.keys()):
                return False
            joined[name] = {**before, **value}
        elif name in ("title", "description"):
            pass  # the outer one is nearer to the matter
        else:
            return False
    merged.update(joined)
    return True


def _describe(fitted: JsonObject, description: Json, words: list[str]) -> None:
    said = description if isinstance(description, str) else ""
    added = "; ".join(words)
    if said or added:
        fitted["description"] = f"{said} ({added})" if said and added else said or added


def _mapping(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()

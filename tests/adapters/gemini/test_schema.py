"""Schemas as Gemini takes them: each rule, and nothing changed that is taken."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.providers.gemini.request import fit_schema, takes_nothing
from callboard.bus.values.base import Json, JsonObject

TAKEN: JsonObject = {
    "type": "object",
    "title": "Everything",
    "description": "All that is taken.",
    "properties": {"a": {"type": "string", "enum": ["x", "y"], "format": "date-time", "pattern": "^x",
        "default": "x"}, "b": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
        "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1, "maxItems": 2},
        "d": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"oneOf": [{"type": "string", "minLength": 1,
        "maxLength": 3}, {"type": "number"}]}, "f": {"type": "array", "prefixItems": [{"type": "string"}, {}]},
        "const": {"type": "boolean"}, "not": {"type": "object", "additionalProperties": {"type": "integer"}},
        "self": {"$ref": "#"}},
    "required": ["a"],
    "additionalProperties": False,
    "propertyOrdering": ["b", "a"],
    "$defs": {"d": {"type": "object", "properties": {"$ref": {"type": "string"}}}},
}  # fmt: skip


def test_what_is_taken_is_left_as_it_is() -> None:
    """Properties that are named like keywords among it."""
    assert fit_schema(TAKEN) is TAKEN


@pytest.mark.parametrize(("given", "sent"), [
    ({"$schema": "x", "$comment": "x", "deprecated": True, "type": "string"}, {"type": "string"}),
    ({"const": "x"}, {"enum": ["x"]}),
    ({"const": 3}, {"enum": [3]}),
    ({"const": True}, {"description": "always true"}),
    ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
    ({"type": "integer", "exclusiveMaximum": 9, "maximum": 5}, {"type": "integer", "maximum": 5}),
    ({"type": "integer", "exclusiveMinimum": 9, "minimum": 0}, {"type": "integer", "minimum": 10}),
    ({"type": "integer", "maximum": 20, "exclusiveMaximum": 9}, {"type": "integer", "maximum": 8}),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        {"type": "integer", "minimum": 0, "description": "without the bound itself"}),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": False}, {"type": "integer", "minimum": 0}),
    ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "description": "greater than 0"}),
    ({"type": "number", "multipleOf": 5, "description": "Money"},
        {"type": "number", "description": "Money (a multiple of 5)"}),
    ({"type": "array", "uniqueItems": True}, {"type": "array", "description": "unique items"}),
    ({"type": "array", "uniqueItems": False}, {"type": "array"}),
    ({"not": {"enum": [1]}}, {"description": 'nothing that matches {"enum":[1]}'}),
    ({"examples": ["a"]}, {"description": 'for example ["a"]'}),
    ({"patternProperties": {"^x": {}}, "contains": 1}, {
        "description": 'patternProperties: {"^x":{}}; contains: 1'}),
    ({"allOf": [{"type": "string"}, {"minLength": 2}]}, {"type": "string", "minLength": 2}),
    ({"type": "object", "properties": {"a": {}}, "required": ["a"],
        "allOf": [{"properties": {"b": {}}, "required": ["b", "a"]}, {"allOf": [{"title": "T"}]}]},
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"], "title": "T"}),
    ({"type": "string", "description": "D", "allOf": [{"type": "number"}]},
        {"type": "string", "description": 'D (allOf: [{"type":"number"}])'}),
    ({"definitions": {"x": {"const": 1}}, "properties": {"a": {"$ref": "#/definitions/x"}}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": [1]}}}),
    ({"$defs": {"x": {}}, "items": {"$ref": "#/$defs/x", "description": "One"}},
        {"items": {"description": "One", "anyOf": [{"$ref": "#/$defs/x"}]}, "$defs": {"x": {}}}),
    ({"$ref": "https://elsewhere"}, {"description": "$ref: https://elsewhere"}),
    ({"items": [{"type": "string"}]}, {"prefixItems": [{"type": "string"}]}),
    ({"properties": {"a": True}}, {"properties": {"a": {}}}),
    ({"properties": {"a": {"const": 1}}}, {"properties": {"a": {"enum": [1]}}}),
    ({"items": {"const": 1}}, {"items": {"enum": [1]}}),
    ({"additionalProperties": {"const": 1}}, {"additionalProperties": {"enum": [1]}}),
    ({"anyOf": [{"const": 1}], "oneOf": [{"const": 2}]}, {"anyOf": [{"enum": [1]}], "oneOf": [{"enum": [2]}]}),
    ({"if": {}, "then": {}, "type": "string"}, {"type": "string", "description": "if: {}; then: {}"}),
])  # fmt: skip
def test_what_is_not_taken_is_rewritten_or_told(given: JsonObject, sent: JsonObject) -> None:
    """Wherever it stands."""
    before = msgspec.json.encode(given)
    assert fit_schema(given) == sent
    assert msgspec.json.encode(given) == before, "the original stays as it was"


def test_a_schema_that_its_host_changes_is_fitted_anew() -> None:
    """What was fitted before is remembered by what the schema said."""
    schema: JsonObject = {"type": "integer", "multipleOf": 2}
    first = fit_schema(schema)
    assert fit_schema(dict(schema)) is first
    schema["multipleOf"] = 3
    assert fit_schema(schema) != first


def test_a_schema_of_which_nothing_is_left_is_sent_empty() -> None:
    assert fit_schema({"deprecated": True}) == {}


KEYWORDS = st.sampled_from(
    ["type", "const", "enum", "not", "multipleOf", "exclusiveMinimum", "pattern", "uniqueItems", "if", "$ref"]
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYWORDS, inner, max_size=2),
    max_leaves=6,
)
SCHEMAS: st.SearchStrategy[JsonObject] = st.recursive(
    st.dictionaries(KEYWORDS, VALUES, max_size=3),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "const"]), inner, max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "$defs": st.dictionaries(st.just("d"), inner, max_size=1),
        },
    ),
    max_leaves=6,
)
REFUSED = {"const", "not", "multipleOf", "uniqueItems", "if", "allOf", "exclusiveMinimum", "definitions"}


def keywords(schema: Json) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for name, value in schema.items():
        if name in ("properties", "$defs") and isinstance(value, dict):
            found |= {key for inner in value.values() for key in keywords(inner)}
        elif name in ("anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            found |= {key for inner in value for key in keywords(inner)}
        elif name in ("items", "additionalProperties"):
            found |= keywords(value)
    return found


@settings(max_examples=150)
@given(SCHEMAS)
def test_any_schema_can_be_fitted(schema: JsonObject) -> None:
    """Nothing refused is left in it, and fitting it again changes nothing."""
    fitted = fit_schema(schema)
    assert not keywords(fitted) & REFUSED
    assert fit_schema(fitted) == fitted


@pytest.mark.parametrize(("schema", "nothing"), [
    ({"type": "object"}, True),
    ({"type": "object", "properties": {}, "additionalProperties": False, "required": []}, True),
    ({"type": "object", "properties": {"a": {}}}, False),
    ({"type": "object", "additionalProperties": True}, False),
    ({"type": "object", "minProperties": 1}, False),
])  # fmt: skip
def test_a_tool_without_parameters_is_known(schema: JsonObject, nothing: bool) -> None:
    """Free keys are parameters, too."""
    assert takes_nothing(schema) is nothing

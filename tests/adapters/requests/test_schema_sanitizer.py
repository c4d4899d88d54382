"""Schemas as every target wants them written, and constraints in words: nothing that a target takes is touched."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.schemas.sanitizer import (
    describe,
    in_words,
    map_subschemas,
    move_to_description,
    normalise_schema,
)
from callboard.adapters.schemas.tools import plain_schema
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolDefinition


def test_definitions_get_their_newer_name_and_references_follow() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/a"}, "b": {"type": "array", "items": {"$ref": "#/$defs/b"}}},
        "definitions": {"a": {"type": "object", "properties": {"again": {"$ref": "#/definitions/a"}}}},
        "$defs": {"b": {"anyOf": [{"$ref": "#/definitions/a"}, {"type": "null"}]}},
    }
    before = copy.deepcopy(schema)
    assert normalise_schema(schema) == {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": "array", "items": {"$ref": "#/$defs/b"}}},
        "$defs": {
            "a": {"type": "object", "properties": {"again": {"$ref": "#/$defs/a"}}},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
        },
    }
    assert schema == before, "the host's schema is not changed"


def test_what_only_tools_for_schemas_read_is_gone_everywhere() -> None:
    noise: JsonObject = {"$schema": "x", "$anchor": "x", "def": 1, "~standard": {}, "$comment": "x"}
    clean: JsonObject = {"type": "object", "properties": {"a": {"type": "string"}}, "$defs": {"d": {"const": 1}}}
    noisy: JsonObject = {
        **clean,
        **noise,
        "properties": {"a": {"type": "string", **noise}},
        "$defs": {"d": {"const": 1, **noise}},
    }
    assert normalise_schema(noisy) == clean


def test_properties_may_have_any_name() -> None:
    """A property that is called like a keyword is no keyword."""
    names: JsonObject = {
        "$schema": {"type": "string"},
        "def": {"type": "string"},
        "definitions": {"type": "string"},
    }
    schema: JsonObject = {"type": "object", "properties": {**names, "~x": {"type": "string"}}}
    assert normalise_schema(schema) == schema


def test_values_are_no_schemas() -> None:
    """What stands in an enum, a constant or a default stays as it is."""
    schema: JsonObject = {"enum": [{"$schema": 1}], "const": {"def": 1}, "default": {"$ref": "#/definitions/a"}}
    assert normalise_schema(schema) == schema


def test_only_what_is_refused_moves_into_the_description() -> None:
    schema: JsonObject = {"type": "string", "minLength": 2, "format": "uri", "description": "Where"}
    moved = move_to_description(schema, lambda name, value: name == "format")
    assert moved == {"type": "string", "minLength": 2, "description": "Where (format: uri)"}
    assert move_to_description(schema, lambda name, value: False) is schema


def test_constraints_are_told_in_few_words() -> None:
    said = in_words({"minLength": 2, "uniqueItems": True, "multipleOf": 0.5, "readOnly": False, "x-odd": [1]})
    assert list(said) == ["at least 2 characters", "no item twice", "a multiple of 0.5", "x-odd: [1]"]
    assert describe({"description": 7}, ["a"]) == {"description": "a"}
    assert describe({}, []) == {}


def test_a_tools_schema_is_written_so_without_strict_mode() -> None:
    tool = ToolDefinition("look", "", {"type": "object", "$schema": "x", "properties": {"$schema": {}}})
    assert plain_schema(tool) == {"type": "object", "properties": {"$schema": {}}}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "string", "#/definitions/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "anyOf", "$ref", "definitions", "$schema", "~x", "enum"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["type", "properties", "items", "definitions", "$defs", "not"]), json_values)
)
def test_no_json_makes_it_fail_and_twice_is_once(schema: dict[str, Json]) -> None:
    once = normalise_schema(schema)
    assert normalise_schema(once) == once
    assert map_subschemas(schema, lambda inner: inner) == schema

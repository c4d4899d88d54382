"""What the quick check accepts, jsonschema does too; what is not plain, it leaves alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from callboard.bus.values.base import Json, JsonObject
from callboard.engine.type_schema import SchemaError, check
from callboard.engine.type_schema.checking import accepting

from ...support.json_values import JSON_VALUES

NAMES = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
BOUNDS = st.integers(-3, 3) | st.sampled_from([-0.5, 0.0, 1.5])
SIZES = st.integers(0, 3)
SCHEMAS: st.SearchStrategy[Json] = st.recursive(
    st.just(True) | st.fixed_dictionaries({}, optional={"type": KINDS, "format": st.just("date")}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS | st.lists(KINDS, min_size=1, max_size=3, unique=True),
            "enum": st.lists(st.sampled_from(["", "a", "bb", None]), min_size=1, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), BOUNDS),
            **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), SIZES),
            "description": st.text(max_size=3),
        },
    ),
    max_leaves=6,
)
LEAVES = st.sampled_from([None, True, False, 0, 1, -1, 2, 3.0, 0.5, 1.5, "", "a", "bb", "𝔘𝔫", "abcd"])
VALUES: st.SearchStrategy[Json] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, VALUES | JSON_VALUES)
def test_the_quick_check_says_what_jsonschema_says(schema: Json, value: Json) -> None:
    """Of every plain schema and value, in both directions."""
    accepts = accepting(schema)
    assert accepts is not None
    assert accepts(value) == Draft202012Validator(schema).is_valid(value)  # type: ignore[arg-type]


NOT_PLAIN: list[Json] = [
    False,
    {"anyOf": [{"type": "string"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
    {"type": "string", "pattern": "a"},
    {"type": "number", "multipleOf": 2},
    {"type": "array", "prefixItems": [{"type": "string"}]},
    {"type": "array", "items": {"uniqueItems": True}},
    {"type": "object", "patternProperties": {"a": {}}},
    {"type": "object", "properties": {"a": {"not": {}}}},
    {"type": "object", "additionalProperties": {"oneOf": [{}]}},
    {"enum": [1, "a"]},
    {"const": True},
    {"const": "a", "enum": ["a"]},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"},
    {"type": "string", "a keyword of tomorrow": 1},
]


@pytest.mark.parametrize("schema", NOT_PLAIN, ids=str)
def test_what_is_not_plain_is_left_to_jsonschema(schema: Json) -> None:
    """A keyword that isn't known here could refuse what the others accept."""
    assert accepting(schema) is None


def test_numbers_that_json_lacks_are_left_to_jsonschema() -> None:
    """They come from hosts only."""
    accepts = accepting({"type": "integer", "minimum": 0})
    assert accepts is not None
    assert not accepts(math.nan)
    assert not accepts(math.inf)


def test_values_of_other_types_are_left_to_jsonschema() -> None:
    """A subclass of a dictionary may answer differently."""

    class Own(dict[str, Json]):
        pass

    accepts = accepting({"type": "object"})
    assert accepts is not None
    assert accepts({})
    assert not accepts(Own())
    check(Own(), {"type": "object"})


PLAIN: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_a_fault_is_told_by_jsonschema_and_a_wrong_schema_is_still_one() -> None:
    """The quick check changes neither."""
    check({"n": 1.0}, PLAIN)
    with pytest.raises(ValueError, match=r"\$\.n: 'x' is not of type 'integer'"):
        check({"n": "x"}, PLAIN)
    with pytest.raises(SchemaError, match="not a JSON Schema"):
        check({"n": 1}, {"type": "object", "required": "n"})

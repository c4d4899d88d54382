"""The values that the check accepts, and its messages for other values. Models and hosts read these messages.

The table must pass with any library that does the checking.
"""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from callboard.bus.values.base import Json, JsonObject
from callboard.engine.schema_checks import accepting, check, check_schema
from callboard.engine.type_schema import SchemaError

from ...support.json_values import JSON_VALUES
from ...support.present import present

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TREE: JsonObject = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
}

ACCEPTED: dict[str, tuple[JsonObject, Json]] = {
    "a whole float is an integer": ({"type": "integer"}, 1.0),
    "an integer of any size": ({"type": "integer", "maximum": 10**30}, 10**30),
    "more digits than Python writes": ({"type": "integer"}, 10**5000),
    "NaN is a number": ({"type": "number"}, math.nan),
    "infinity is a number": ({"type": "number"}, math.inf),
    "1 equals 1.0 in an enum": ({"enum": [1]}, 1.0),
    "1 and true are different items": ({"uniqueItems": True}, [1, True]),
    "half a surrogate pair is a text": ({"type": "string"}, "\ud800"),
    "half a surrogate pair in a pattern's text": ({"pattern": "b"}, "\ud800b"),
    "half a surrogate pair in a key": ({"type": "object"}, {"\ud800": 1}),
    "a character outside the basic plane counts once": ({"maxLength": 1}, "𝔘"),
    "a pattern is searched for": ({"pattern": "b"}, "abc"),
    "digits of any script": ({"pattern": r"^\d$"}, "٣"),
    "a pattern that Python can't read": ({"pattern": r"^\p{L}$"}, "1"),
    "a pattern that nobody can read": ({"pattern": "("}, "x"),
    "such a pattern of properties": ({"patternProperties": {"(": {"type": "integer"}}}, {"(": "x"}),
    "formats are not checked": ({"type": "string", "format": "date"}, "x"),
    "nor in older dialects": ({"$schema": DRAFT_7, "format": "date"}, "x"),
    "nor is what a text encodes": ({"$schema": DRAFT_7, "contentEncoding": "base64"}, "!!"),
    "a missing definition that isn't needed": ({"properties": {"a": {"$ref": "#/$defs/x"}}}, {}),
    "nesting within reason": (TREE, [[[[]]]]),
    "an unknown keyword": ({"type": "string", "x-own": 3}, "a"),
}


def test_a_value_is_accepted() -> None:
    """Another checker might refuse these values."""
    for schema, value in ACCEPTED.values():
        check(value, schema)


OBJECT_OR: list[Json] = [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "null"}]
ORDERED: JsonObject = {"properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["c"]}

REFUSED: list[tuple[JsonObject, Json, str]] = [
    # A model can correct the nearest alternative. It can't correct "under none of the schemas".
    ({"anyOf": OBJECT_OR}, {"a": "x"}, "$.a: 'x' is not of type 'integer'"),
    ({"oneOf": OBJECT_OR}, {"a": "x"}, "$.a: 'x' is not of type 'integer'"),
    # Faults come in the order of the schema.
    (
        ORDERED,
        {"a": 1, "b": 2},
        "$.b: 2 is not of type 'null'; $.a: 1 is not of type 'null'; $: 'c' is a required property",
    ),
    ({"type": "integer"}, True, "$: True is not of type 'integer'"),
    ({"type": "integer"}, math.nan, "$: nan is not of type 'integer'"),
    ({"type": "string"}, None, "$: None is not of type 'string'"),
    ({"type": "string", "nullable": True}, None, "$: None is not of type 'string'"),
    ({"type": ["string", "null"]}, 1, "$: 1 is not of type 'string', 'null'"),
    ({"enum": ["a", None, True, 1.5]}, 3, "$: 3 is not one of ['a', None, True, 1.5]"),
    ({"enum": [False]}, 0, "$: 0 is not one of [False]"),
    ({"const": 1}, True, "$: 1 was expected"),
    ({"const": 10**30}, 10**30 + 1, f"$: {10**30} was expected"),
    ({"const": {"a": [1]}}, 3, "$: {'a': [1]} was expected"),
    ({"maximum": 2**53}, 2**53 + 1, f"$: {2**53 + 1} is greater than the maximum of {2**53}"),
    ({"maximum": 5}, math.inf, "$: inf is greater than the maximum of 5"),
    ({"minimum": 0}, -(10**40), f"$: {-(10**40)} is less than the minimum of 0"),
    ({"exclusiveMaximum": 3}, 3, "$: 3 is greater than or equal to the maximum of 3"),
    ({"exclusiveMinimum": 3.5}, 3, "$: 3 is less than or equal to the minimum of 3.5"),
    ({"multipleOf": 3}, 10**30, f"$: {10**30} is not a multiple of 3"),
    ({"minLength": 2}, "a", "$: 'a' is too short"),
    ({"minLength": 1}, "", "$: '' should be non-empty"),
    ({"maxLength": 1}, "\ud800a", "$: '\\ud800a' is too long"),
    ({"pattern": "^[A-Z]$"}, "a", "$: 'a' does not match '^[A-Z]$'"),
    ({"minItems": 1}, [], "$: [] should be non-empty"),
    ({"maxItems": 1}, [1, 2], "$: [1, 2] is too long"),
    ({"maxItems": 0}, [1], "$: [1] is expected to be empty"),
    ({"uniqueItems": True}, [1, 1.0], "$: [1, 1.0] has non-unique elements"),
    ({"contains": {"type": "integer"}}, [], "$: [] does not contain items matching the given schema"),
    ({"minProperties": 1}, {}, "$: {} should be non-empty"),
    ({"required": ["a", "b"]}, {}, "$: 'a' is a required property; $: 'b' is a required property"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "$: 'b' is a dependency of 'a'"),
    (
        {"properties": {"a": {}}, "additionalProperties": False},
        {"x": 1, "y": 1},
        "$: Additional properties are not allowed ('x', 'y' were unexpected)",
    ),
    ({"properties": {"a": False}}, {"a": 1}, "$: False schema does not allow 1"),
    ({"propertyNames": {"maxLength": 1}}, {"abc": 1}, "$: 'abc' is too long"),
    ({"not": {"type": "integer"}}, 1, "$: 1 should not be valid under {'type': 'integer'}"),
    ({"if": {"type": "integer"}, "then": {"minimum": 5}}, 1, "$: 1 is less than the minimum of 5"),
    ({"properties": {"full name": {"type": "null"}}}, {"full name": 1}, "$['full name']: 1 is not of type 'null'"),
]


@pytest.mark.parametrize(("schema", "value", "said"), REFUSED, ids=lambda part: str(part)[:40])
def test_a_fault_has_this_message(schema: JsonObject, value: Json, said: str) -> None:
    """Each keyword has a message of its own, with the value as Python writes it."""
    with pytest.raises(ValueError) as refused:
        check(value, schema)
    assert str(refused.value) == said


def _nested(depth: int) -> Json:
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


def test_values_and_schemas_without_an_end_are_faults() -> None:
    """A nested value of any depth raises an error. A stack overflow in machine code would end the process."""
    endless: list[Json] = []
    endless.append(endless)
    offenders: list[tuple[Json, JsonObject]] = [(_nested(100_000), TREE), (endless, TREE), (1, {"$ref": "#"})]
    for value, schema in [*offenders, (1, {"allOf": [{"$ref": "#"}]})]:
        with pytest.raises(ValueError, match="nested too deeply"):
            check(value, schema)


def test_no_reference_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: object, **__: object) -> None:
        raise AssertionError("a reference was fetched")

    monkeypatch.setattr("urllib.request.urlopen", fetched)
    monkeypatch.setattr("socket.socket.connect", fetched)
    for reference in ("http://127.0.0.1:9/x.json", "file:///etc/hosts", "ftp://127.0.0.1:9/x", "other.json"):
        with pytest.raises(SchemaError, match=r"which it does not define. Add it to \$defs"):
            check(1, {"$ref": reference})


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    """The encoder or the reader can't process such a schema."""
    for depth in (400, 5000):
        schema: JsonObject = functools.reduce(lambda inner, _: {"items": inner}, range(depth), {"type": "integer"})
        with pytest.raises(SchemaError):
            check_schema(schema)
    for dialect in (3, None, ["a"], {}):
        with pytest.raises(SchemaError, match=r"not a JSON Schema: \$\['\$schema'\]: .* is not of type 'string'"):
            check_schema({"$schema": dialect})


# The quick check accepts the same values as jsonschema, and leaves schemas that are not plain to it.

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
def test_the_quick_check_agrees_with_jsonschema(schema: Json, value: Json) -> None:
    """The two checks agree for every plain schema and value."""
    accepts = accepting(schema)
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
def test_a_schema_that_is_not_plain_is_left_to_jsonschema(schema: Json) -> None:
    """An unknown keyword could refuse values that the known ones accept."""
    assert accepting(schema) is None


def test_values_of_other_types_are_left_to_jsonschema() -> None:
    """A subclass of a dictionary may answer differently. Numbers that JSON lacks come only from hosts."""

    class Own(dict[str, Json]):
        pass

    accepts = present(accepting({"type": "object"}))
    assert accepts({})
    assert not accepts(Own())
    check(Own(), {"type": "object"})
    accepts = present(accepting({"type": "integer", "minimum": 0}))
    assert not accepts(math.nan)
    assert not accepts(math.inf)


PLAIN: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_the_quick_check_keeps_messages_and_errors_of_jsonschema() -> None:
    """The message for a wrong value is that of jsonschema. A wrong schema still raises SchemaError."""
    check({"n": 1.0}, PLAIN)
    with pytest.raises(ValueError, match=r"\$\.n: 'x' is not of type 'integer'"):
        check({"n": "x"}, PLAIN)
    with pytest.raises(SchemaError, match="not a JSON Schema"):
        check({"n": 1}, {"type": "object", "required": "n"})

"""Schemas as Anthropic takes them: shapes are enforced, sizes are told, and what can't be said is not sent."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.providers.anthropic.request import write_request
from callboard.adapters.providers.anthropic.settings import fit_schema
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import ToolDefinition

from ...support.fake_http import request

REFUSED: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "minimum": 1,
    "maximum": 99,
    "exclusiveMinimum": 0,
    "exclusiveMaximum": 100,
    "multipleOf": 3,
    "minLength": 1,
    "maxLength": 9,
    "pattern": "^a",
    "format": "binary",
    "minItems": 2,
    "maxItems": 5,
    "uniqueItems": True,
    "default": 7,
    "examples": [1],
}
"""What the API answers with "For 'integer' type, property 'minimum' is not supported" and the like."""


def sent(**fields: object) -> tuple[JsonObject, WireCall]:
    asked: CanonicalRequest = request(model="anthropic:claude-sonnet-4-5", **fields)
    wire = write_request(asked, provider="anthropic", options={}, stream=False)
    return msgspec.json.decode(wire.body), wire


def holding(keyword: str, kind: str = "integer") -> JsonObject:
    items: JsonObject = {"items": {"type": "string"}} if kind == "array" else {}
    inner: JsonObject = {"type": kind, "description": "A number.", keyword: REFUSED[keyword], **items}
    return {"type": "object", "properties": {"n": inner, "list": {"type": "array", "items": inner}}}


@pytest.mark.parametrize("keyword", REFUSED)
@pytest.mark.parametrize("strict_tool", [False, True])
def test_a_refused_keyword_is_told_and_not_sent(keyword: str, strict_tool: bool) -> None:
    """In the format of the reply and in strict tools, wherever it stands; the host's schema stays as it was."""
    kind = "array" if keyword in ("minItems", "maxItems", "uniqueItems") else "integer"
    schema = holding(keyword, kind)
    before = copy.deepcopy(schema)
    if strict_tool:
        body: Any = sent(tools=(ToolDefinition("f", "", schema, strict=True),))[0]
        fitted = body["tools"][0]["input_schema"]
    else:
        body = sent(output_schema=schema)[0]
        fitted = body["output_config"]["format"]["schema"]
    assert f'"{keyword}"'.encode() not in msgspec.json.encode(fitted)
    inner = fitted["properties"]["n"]
    assert inner["description"].startswith("A number.")
    if keyword != "$schema":
        assert len(inner["description"]) > len("A number.")
    assert schema == before


@pytest.mark.parametrize(
    ("schema", "fitted"),
    [
        ({"type": "array", "items": {"type": "null"}, "minItems": 1}, ...),
        ({"type": "string", "format": "date"}, ...),
        ({"type": ["string", "null"]}, ...),
        ({"enum": ["a", 1, None]}, ...),
        (
            {"type": "object", "properties": {}},
            {"type": "object", "properties": {}, "additionalProperties": False},
        ),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": True, "required": ["a"]},
            {
                "type": "object",
                "properties": {"a": {"const": 1}},
                "additionalProperties": False,
                "required": ["a"],
            },
        ),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"allOf": [{"type": "string"}], "description": "S"}, {"type": "string", "description": "S"}),
        (
            {
                "type": "array",
                "items": {"$ref": "#/definitions/a", "description": "One"},
                "definitions": {"a": {"type": "string", "minLength": 2}},
            },
            {
                "type": "array",
                "items": {"description": "One", "anyOf": [{"$ref": "#/$defs/a"}]},
                "$defs": {"a": {"type": "string", "description": "at least 2 characters"}},
            },
        ),
    ],
)
def test_what_is_taken_stays_and_what_has_an_equal_is_rewritten(schema: JsonObject, fitted: JsonObject) -> None:
    assert fit_schema(schema) == (schema if fitted is ... else fitted)


UNSAYABLE: list[JsonObject] = [
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": True}}},
    {"type": "object", "properties": {"a": {}}},
    {"type": "object", "properties": {"a": True}},
    {"type": "array"},
    {"type": "array", "prefixItems": [{"type": "string"}]},
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/t"}},
        "$defs": {"t": {"anyOf": [{"$ref": "#/$defs/t"}]}},
    },
]


@pytest.mark.parametrize("schema", UNSAYABLE)
def test_a_shape_that_the_grammar_cannot_say_is_told_in_the_system_text(schema: JsonObject) -> None:
    """Closed instead, a dictionary would always come back empty. The loss of enforcement is a warning."""
    body, wire = sent(output_schema=schema, system_prompt="Brief.")
    assert "output_config" not in body
    system = body["system"]
    said = system if isinstance(system, str) else system[0]["text"]  # type: ignore[index, call-overload]
    assert isinstance(said, str)
    assert said.startswith("Brief.\n\nAnswer with one JSON object only")
    assert [warning.code for warning in wire.warnings] == ["schema_as_instruction"]


@pytest.mark.parametrize("schema", [schema for schema in UNSAYABLE if "properties" in schema])
def test_a_tool_that_insists_on_strict_mode_must_have_a_schema_for_it(schema: JsonObject) -> None:
    """It says where the fault is; the same tool without strict mode is sent as it is."""
    with pytest.raises(InvalidRequestError, match=r"tool 'f' can't be strict: \$"):
        sent(tools=(ToolDefinition("f", "", schema, strict=True),))
    body, _ = sent(tools=(ToolDefinition("f", "", schema),))
    assert body["tools"] == [{"name": "f", "input_schema": schema}]


def test_a_strict_tool_without_properties_takes_no_arguments() -> None:
    body, _ = sent(tools=(ToolDefinition("f", "", {"type": "object"}, strict=True),))
    closed: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
    assert body["tools"] == [{"name": "f", "strict": True, "input_schema": closed}]


_words = st.text("abc", max_size=3)
_constraints = st.fixed_dictionaries({}, optional={name: st.just(value) for name, value in REFUSED.items()})
_leaves = st.builds(
    lambda kind, more: {"type": kind, **more},
    st.sampled_from(["string", "integer", "number", "boolean", "null"]),
    _constraints,
) | st.builds(lambda values: {"enum": values}, st.lists(_words, min_size=1, max_size=3))


def _grown(inner: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    objects = st.builds(
        lambda parts, more: {"type": "object", "properties": parts, "required": list(parts), **more},
        st.dictionaries(_words, inner, max_size=3),
        _constraints,
    )
    arrays = st.builds(lambda items, more: {"type": "array", "items": items, **more}, inner, _constraints)
    return objects | arrays | st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3))


@settings(max_examples=150)
@given(st.recursive(_leaves, _grown, max_leaves=8))
def test_the_vendors_own_transformation_has_nothing_left_to_do(schema: JsonObject) -> None:
    """The SDK moves into the description what the API refuses; of a fitted schema it moves nothing."""
    from anthropic import transform_schema

    fitted = fit_schema(schema)
    assert isinstance(fitted, dict)
    assert transform_schema(copy.deepcopy(fitted)) == fitted

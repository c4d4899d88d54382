"""Sampling, effort, thinking and schemas in the forms that Anthropic's models accept."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.providers.anthropic.data import find_model
from callboard.adapters.providers.anthropic.request import write_request
from callboard.adapters.providers.anthropic.settings import fit_schema
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.errors import CapabilityError, InvalidRequestError, UnsupportedToolChoiceError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ProviderRaw, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition

from ...support.fake_http import request
from ...support.judges import messages_faults

TOOL = ToolDefinition("read", "Reads.")


def write(model: str, **changes: object) -> WireCall:
    fields: dict[str, object] = {"model": f"anthropic:{model}", "max_output_tokens": 8_000, **changes}
    wire = write_request(request(**fields), provider="anthropic", options={}, stream=False)
    assert messages_faults(wire.body) == []
    return wire


def tuned(wire: WireCall) -> JsonObject:
    """The settings of the reply."""
    body: JsonObject = msgspec.json.decode(wire.body)
    names = ("thinking", "output_config", "temperature", "top_p", "metadata")
    return {name: body[name] for name in names if name in body}


def codes(wire: WireCall) -> list[str]:
    return [warning.code for warning in wire.warnings]


# -- the table


@pytest.mark.parametrize(("name", "row"), [
    ("claude-opus-4-20250514", "claude-opus-4"),
    ("claude-opus-4-0", "claude-opus-4"),
    ("claude-opus-4-1-20250805", "claude-opus-4-1"),
    ("claude-opus-4-5", "claude-opus-4-5"),
    ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
    ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
    ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
    ("claude-3-5-haiku-20241022", "claude-3-5-haiku"),
    ("claude-opus-4-8@20260528", "claude-opus-4-8"),
    ("claude-sonnet-5", "claude-sonnet-5"),
    ("claude-opus-9-1", "claude-opus-5-5"),
    ("claude-haiku-10", "claude-haiku-5-5"),
    ("claude-mythos-5-3", "claude-mythos-5-2"),
])  # fmt: skip
def test_a_model_is_known_by_any_of_its_names_and_a_newer_one_inherits(name: str, row: str) -> None:
    found = find_model(name)
    assert found is not None
    assert found.id == row


@pytest.mark.parametrize("name", ["claude-of-tomorrow", "claude-saga-6", "claude-2.1", "llama-3.3-70b", ""])
def test_what_is_no_such_model_is_not_guessed_at(name: str) -> None:
    assert find_model(name) is None


# -- sampling and the user's id


@pytest.mark.parametrize(("model", "left"), [
    ("claude-of-tomorrow", {}),
    ("claude-saga-6", {}),
    ("claude-2.1", {"temperature": 0.5, "top_p": 0.5}),
    ("llama-3.3-70b", {"temperature": 0.5, "top_p": 0.5}),
    ("claude-3-5-sonnet-20241022", {"temperature": 0.5, "top_p": 0.5}),
    ("claude-sonnet-4-5", {"temperature": 0.5}),
    ("claude-opus-4-7", {}),
    ("claude-haiku-5-5", {}),
])  # fmt: skip
def test_sampling_is_sent_as_far_as_the_model_takes_it(model: str, left: JsonObject) -> None:
    wire = write(model, temperature=0.5, top_p=0.5)
    assert tuned(wire) == left
    assert codes(wire) == ["parameter_dropped"] * (2 - len(left))


def test_a_model_that_thinks_takes_no_sampling() -> None:
    wire = write("claude-sonnet-4-6", temperature=0.5, reasoning_effort="low")
    assert "temperature" not in tuned(wire)
    assert "while thinking" in wire.warnings[0].message


# -- effort and thinking


@pytest.mark.parametrize(("model", "asked", "sent", "warned"), [
    ("claude-of-tomorrow", "high", {"output_config": {"effort": "high"}}, []),
    ("claude-of-tomorrow", "none", {"output_config": {"effort": "low"}}, ["parameter_changed"]),
    ("claude-3-5-haiku-latest", "high", {}, ["parameter_dropped"]),
    ("claude-3-5-haiku-latest", "none", {}, []),
    ("claude-sonnet-4-5", "none", {}, []),
    ("claude-sonnet-4-5", "minimal", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, []),
    ("claude-sonnet-4-5", "medium", {"thinking": {"type": "enabled", "budget_tokens": 4000}}, []),
    ("claude-opus-4-5", "max", {"output_config": {"effort": "high"},
        "thinking": {"type": "enabled", "budget_tokens": 4000}}, ["parameter_changed"]),
    ("claude-opus-4-6", "xhigh", {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
        ["parameter_changed"]),
    ("claude-opus-4-8", "xhigh", {"output_config": {"effort": "xhigh"}, "thinking": {"type": "adaptive"}}, []),
    ("claude-sonnet-5", "low", {"output_config": {"effort": "low"}}, []),
    ("claude-sonnet-5", "none", {"thinking": {"type": "disabled"}}, []),
    ("claude-opus-5-5", "none", {"output_config": {"effort": "low"}}, ["parameter_changed"]),
])  # fmt: skip
def test_an_effort_becomes_the_setting_of_the_model(
    model: str, asked: str, sent: JsonObject, warned: list[str]
) -> None:
    """A budget is at most half of the reply's limit, which is 8,000 here."""
    wire = write(model, reasoning_effort=asked)
    assert (tuned(wire), codes(wire)) == (sent, warned)


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-5", "claude-opus-4-6"])
def test_the_hosts_own_budget_goes_first_and_no_effort_with_it(model: str) -> None:
    own: Json = {"type": "enabled", "budget_tokens": 2000}
    wire = write(model, reasoning_effort="high", provider_options={"anthropic": {"thinking": own}})
    assert tuned(wire) == {"thinking": own}


def test_a_budget_that_would_be_refused_is_left_out() -> None:
    """A budget is left out with too little output, with a forced call, and in a tool loop without the model's own
    thinking.
    """
    call, model = ToolUseBlock("tu_1", "read", {}), "claude-sonnet-4-5"
    result = Message.tool_result("tu_1", "x")
    thought = ThinkingBlock("Hm", "sig", ProviderRaw("anthropic", {}))
    foreign, own = ((Message.user("Go"), Message.assistant(said), result) for said in ((call,), (thought, call)))
    refused: list[dict[str, object]] = [
        {"max_output_tokens": 1024}, {"tools": (TOOL,), "tool_choice": ToolChoice("required")},
        {"messages": foreign},
    ]  # fmt: skip
    for changes in refused:
        wire = write(model, reasoning_effort="high", **changes)
        assert (tuned(wire), codes(wire)) == ({}, ["parameter_dropped"])
    enabled = {"thinking": {"type": "enabled", "budget_tokens": 4000}}
    assert tuned(write(model, reasoning_effort="low", messages=own)) == enabled


# -- settings that can't be left out


def test_a_demanded_call_is_refused_where_the_model_refuses_it() -> None:
    demand = {"tools": (TOOL,), "tool_choice": ToolChoice("named", "read")}
    with pytest.raises(UnsupportedToolChoiceError, match="can't be forced to call a tool"):
        write("claude-opus-5-5", **demand)
    with pytest.raises(UnsupportedToolChoiceError, match="while it thinks with a budget"):
        thinking: Json = {"type": "enabled", "budget_tokens": 2000}
        write("claude-sonnet-4-5", **demand, provider_options={"anthropic": {"thinking": thinking}})
    for choice in (None, ToolChoice("auto"), ToolChoice("none")):
        write("claude-opus-5-5", tools=(TOOL,), tool_choice=choice)
    assert msgspec.json.decode(write("claude-opus-4-8", **demand).body)["tool_choice"]["name"] == "read"


def test_a_schema_is_refused_where_the_model_has_no_structured_output() -> None:
    with pytest.raises(CapabilityError, match="does not support output schemas"):
        write("claude-sonnet-4-20250514", output_schema={"type": "object"})


def test_more_output_than_the_model_gives_is_lowered() -> None:
    wire = write("claude-opus-4-1", max_output_tokens=64_000)
    assert (msgspec.json.decode(wire.body)["max_tokens"], codes(wire)) == (32_000, ["parameter_changed"])
    unknown = write("claude-of-tomorrow", max_output_tokens=999_999)
    assert msgspec.json.decode(unknown.body)["max_tokens"] == 999_999


# -- Schemas in Anthropic's form: shapes are enforced, limits become text, and unsupported keywords are not sent.


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
"""Keywords that the API refuses with errors such as "For 'integer' type, property 'minimum' is not supported"."""


def sent(**fields: object) -> tuple[JsonObject, WireCall]:
    asked: CanonicalRequest = request(model="anthropic:claude-sonnet-4-5", **fields)
    wire = write_request(asked, provider="anthropic", options={}, stream=False)
    return msgspec.json.decode(wire.body), wire


def holding(keyword: str, kind: str = "integer") -> JsonObject:
    items: JsonObject = {"items": {"type": "string"}} if kind == "array" else {}
    inner: JsonObject = {"type": kind, "description": "A number.", keyword: REFUSED[keyword], **items}
    return {"type": "object", "properties": {"n": inner, "list": {"type": "array", "items": inner}}}


@pytest.mark.parametrize("strict_tool", [False, True])
def test_a_refused_keyword_becomes_text(strict_tool: bool) -> None:
    """The keyword moves into a description, at any place of the reply's schema and of strict tools. The host's
    schema does not change.
    """
    for keyword in REFUSED:
        schema = holding(keyword, "array" if keyword in ("minItems", "maxItems", "uniqueItems") else "integer")
        before = copy.deepcopy(schema)
        if strict_tool:
            body: Any = sent(tools=(ToolDefinition("f", "", schema, strict=True),))[0]
            fitted = body["tools"][0]["input_schema"]
        else:
            body = sent(output_schema=schema)[0]
            fitted = body["output_config"]["format"]["schema"]
        assert f'"{keyword}"'.encode() not in msgspec.json.encode(fitted)
        said = fitted["properties"]["n"]["description"]
        assert said.startswith("A number.")
        assert keyword == "$schema" or len(said) > len("A number.")
        assert schema == before


@pytest.mark.parametrize(("schema", "fitted"), [
    ({"type": "array", "items": {"type": "null"}, "minItems": 1}, ...),
    ({"type": "string", "format": "date"}, ...),
    ({"type": ["string", "null"]}, ...),
    ({"enum": ["a", 1, None]}, ...),
    ({"type": "object", "properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
    ({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": True, "required": ["a"]},
        {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False, "required": ["a"]}),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ({"allOf": [{"type": "string"}], "description": "S"}, {"type": "string", "description": "S"}),
    ({"type": "array", "items": {"$ref": "#/definitions/a", "description": "One"},
        "definitions": {"a": {"type": "string", "minLength": 2}}}, {"type": "array",
        "items": {"description": "One", "anyOf": [{"$ref": "#/$defs/a"}]},
        "$defs": {"a": {"type": "string", "description": "at least 2 characters"}}}),
])  # fmt: skip
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
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}},
        "$defs": {"t": {"anyOf": [{"$ref": "#/$defs/t"}]}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", UNSAYABLE)
def test_a_shape_that_the_grammar_lacks_is_described_in_the_system_text(schema: JsonObject) -> None:
    """If the schema were closed, a dictionary would always be empty. The lost enforcement causes a warning."""
    body, wire = sent(output_schema=schema, system_prompt="Brief.")
    assert "output_config" not in body
    system = body["system"]
    said = system if isinstance(system, str) else system[0]["text"]  # type: ignore[index, call-overload]
    assert isinstance(said, str)
    assert said.startswith("Brief.\n\nAnswer with one JSON object only")
    assert [warning.code for warning in wire.warnings] == ["schema_as_instruction"]


@pytest.mark.parametrize("schema", [schema for schema in UNSAYABLE if "properties" in schema])
def test_a_tool_that_requires_strict_mode_must_have_a_supported_schema(schema: JsonObject) -> None:
    """The error has the place of the fault. Without strict mode, the same tool is sent unchanged."""
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
def test_the_vendors_own_transformation_changes_nothing(schema: JsonObject) -> None:
    """The SDK moves refused keywords into the description. In a fitted schema, it changes nothing."""
    from anthropic import transform_schema

    fitted = fit_schema(schema)
    assert isinstance(fitted, dict)
    assert transform_schema(copy.deepcopy(fitted)) == fitted

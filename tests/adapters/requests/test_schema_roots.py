"""Unions at the root of a schema: every wire sends one object, and the arguments keep their own schema."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.requests.schemas import (
    describe,
    describe_constraints,
    map_subschemas,
    moonshot_schema,
    move_to_description,
    normalise_schema,
)
from callboard.adapters.requests.tools import fold_root, plain_schema
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolDefinition

from ...support.virtual_time import FakeClock, run_virtual
from ...support.wires import anthropic, chat, gemini, ollama, responses
from ...support.wires.reading import asked
from ...support.wires.wire import Wire

S: JsonObject = {"type": "string"}
FILE: JsonObject = {
    "type": "object",
    "properties": {"kind": {"const": "file"}, "path": S},
    "required": ["kind", "path"],
}
PAGE: JsonObject = {
    "type": "object",
    "properties": {"kind": {"const": "page"}, "url": S},
    "required": ["kind", "url"],
}
EITHER: JsonObject = {"anyOf": [FILE, PAGE]}

FORMS: list[tuple[str, JsonObject, JsonObject]] = [
    ("anyOf", EITHER, {"properties": {"kind": S, "path": S, "url": S}, "required": ["kind"]}),
    ("oneOf", {"oneOf": [FILE, PAGE]}, {"required": ["kind"]}),
    ("allOf", {"allOf": [FILE, {"properties": {"note": S}}]}, {"required": ["kind", "path"]}),
    ("a union that demands one of two", {
        "type": "object", "properties": {"a": S, "b": S}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }, {"properties": {"a": S, "b": S}}),
    ("a reference", {"$ref": "#/$defs/F", "$defs": {"F": FILE}}, {"required": ["kind", "path"]}),
    ("a union of references", {"anyOf": [{"$ref": "#/$defs/F"}, {"$ref": "#/definitions/P"}],
                               "$defs": {"F": FILE}, "definitions": {"P": PAGE}}, {"required": ["kind"]}),
    ("a union within a union", {"anyOf": [{"oneOf": [FILE, PAGE]}, {"type": "object", "properties": {"kind": S}}]},
     {"properties": {"path": S, "url": S}}),
    ("an optional object", {"anyOf": [FILE, {"type": "null"}]}, {"required": ["kind", "path"]}),
    ("no object at all", {"anyOf": [S, {"type": "integer"}]}, {}),
    ("a schema that refers to itself", {"$ref": "#/$defs/A",
                                        "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, FILE]}}},
     {"required": ["kind", "path"]}),
]  # fmt: skip

WIRES: list[tuple[Wire, str]] = [
    (anthropic.AnthropicWire(), "tools.0.input_schema"),
    (responses.ResponsesWire(), "tools.0.parameters"),
    (chat.ChatWire("openai"), "tools.0.function.parameters"),
    (chat.ChatWire("azure"), "tools.0.function.parameters"),
    (chat.ChatWire("default"), "tools.0.function.parameters"),
    (chat.ChatWire("openrouter"), "tools.0.function.parameters"),
    (chat.ChatWire("moonshot"), "tools.0.function.parameters"),
    (gemini.GeminiWire(), "tools.0.functionDeclarations.0.parametersJsonSchema"),
    (ollama.OllamaWire(), "tools.0.function.parameters"),
]
UNIONS = {"anyOf", "oneOf", "allOf", "$ref"}


class Listening:
    """A transport that keeps the last body."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.body: JsonObject = {}

    async def send(self, request: HttpRequest) -> HttpReply:
        self.body = msgspec.json.decode(request.body)
        return self.wire.whole("Well.")

    async def aclose(self) -> None:
        pass


def sent(wire: Wire, schema: JsonObject) -> tuple[JsonObject, list[str]]:
    """The body, and the codes of the warnings."""

    async def call() -> tuple[JsonObject, list[str]]:
        listening = Listening(wire)
        adapter = wire.make(wire.through(listening), FakeClock())
        reply = await adapter.complete(asked(wire, tools=(ToolDefinition("look", "", schema),)))
        return listening.body, [warning.code for warning in reply.warnings]

    return run_virtual(call)


def at(body: Json, path: str) -> Any:
    for key in path.split("."):
        body = body[int(key)] if isinstance(body, list) else body[key]  # type: ignore[index,call-overload]
    return body


@pytest.mark.parametrize(("name", "schema", "expected"), FORMS, ids=[name for name, *_ in FORMS])
@pytest.mark.parametrize(("wire", "path"), WIRES, ids=[f"{type(each).__name__} {at}" for each, at in WIRES])
def test_every_wire_sends_one_object(
    wire: Wire, path: str, name: str, schema: JsonObject, expected: JsonObject
) -> None:
    """The root has the type object and no union, and the properties of all alternatives."""
    body, codes = sent(wire, schema)
    found = at(body, path)
    assert found["type"] == "object"
    assert not UNIONS & found.keys()
    assert ("schema_folded" in codes) is (name != "a reference")
    for key, value in expected.items():
        if key == "properties":
            assert found[key].keys() == value.keys() | ({"kind"} & found[key].keys())
        else:
            assert sorted(found[key]) == sorted(value)


@pytest.mark.parametrize("quirks", ["vllm", "sglang", "llama.cpp"])
def test_a_server_with_a_grammar_gets_the_union(quirks: str) -> None:
    """It holds the model to the alternatives, so that folding would only lose them."""
    body, codes = sent(chat.ChatWire(quirks), EITHER)
    assert "anyOf" in at(body, "tools.0.function.parameters")
    assert codes == []


def test_a_discriminator_stays_a_choice() -> None:
    """Its constants become one enum, and the description says what belongs together."""
    folded = fold_root(EITHER).schema
    assert at(folded, "properties.kind") == {"enum": ["file", "page"]}
    assert folded["description"] == "at least one of these forms: kind=file with path | kind=page with url"


def test_a_plain_object_is_sent_as_it_is() -> None:
    """The same object, without a warning."""
    folded = fold_root(FILE)
    assert folded.schema is FILE
    assert folded.warnings("tool 'look'") == []


def test_an_alternative_for_anything_demands_nothing() -> None:
    """What only the others require is not required, and a schema for nothing is no alternative."""
    assert "required" not in fold_root({"anyOf": [FILE, True]}).schema
    assert fold_root({"anyOf": [FILE, False]}).schema["required"] == ["kind", "path"]


def test_a_closed_union_stays_closed() -> None:
    """Folded, it takes no other properties either; one open alternative opens it."""
    closed: JsonObject = {"additionalProperties": False}
    assert fold_root({"anyOf": [{**FILE, **closed}, {**PAGE, **closed}]}).schema["additionalProperties"] is False
    assert "additionalProperties" not in fold_root({"anyOf": [{**FILE, **closed}, PAGE]}).schema


def test_moonshot_gets_a_type_for_each_property() -> None:
    """Out of the values or the keywords, or all types; a type beside a union moves into its alternatives."""
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "any": {}, "unit": {"enum": ["m", None]}, "list": {"items": S}, "long": {"minLength": 3},
            "either": {"type": "string", "oneOf": [{"format": "date"}, {"type": "null"}]},
            "both": {"allOf": [{"type": "string"}, {"minLength": 1}]},
        },
    }  # fmt: skip
    found = at(moonshot_schema(schema), "properties")
    assert len(found["any"]["anyOf"]) == 6
    assert found["unit"]["type"] == ["string", "null"]
    assert found["list"]["type"] == "array"
    assert found["long"]["type"] == "string"
    assert found["either"] == {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
    assert found["both"] == {"type": "string", "minLength": 1}


# -- Schemas as every target wants them written, and constraints in words: nothing that a target takes is
# touched.


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
        "$schema": {"type": "string"}, "def": {"type": "string"}, "definitions": {"type": "string"},
    }  # fmt: skip
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
    said = describe_constraints(
        {"minLength": 2, "uniqueItems": True, "multipleOf": 0.5, "readOnly": False, "x-odd": [1]}
    )
    assert list(said) == ["at least 2 characters", "unique items", "a multiple of 0.5", "x-odd: [1]"]
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

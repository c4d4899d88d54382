"""Conversations over Gemini's Interactions API: steps in requests and in replies."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.gemini.request import fit_schema, takes_nothing
from callboard.bus.errors import AdapterError, ConfigurationError, OverloadedError, RateLimitError
from callboard.bus.streams.events import ProviderBlock, ProviderEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason

from ...support.fake_http import ask
from ...support.judges import interaction_faults
from ...support.wires import WIRES
from ...support.wires import interactions as i
from ...support.wires.reading import read, read_pieces, read_whole

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

WIRE = WIRES[6]
PNG = b"\x89PNG\r\n\x1a\n"
SCHEMA: JsonObject = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
LOOK = ToolDefinition("look", "Looks.", SCHEMA)


def body_of(*messages: Message, **changes: object) -> JsonObject:
    fields = {"model": "gemini:gemini-3-flash", **changes}
    adapter = GeminiAdapter(AdapterConfig(options={"api": "interactions"}))
    call = adapter.write_request(ask(*(messages or (Message.user("Hi"),)), **fields), stream=False)
    assert call.path == "/v1beta/interactions"
    assert call.headers == {"api-revision": "2026-05-20"}
    assert interaction_faults(call.body) == []
    body: JsonObject = msgspec.json.decode(call.body)
    return body


def mine(**data: Json) -> ProviderRaw:
    return ProviderRaw("gemini", data)


# -- requests


def test_a_conversation_is_sent_as_steps_and_nothing_is_stored() -> None:
    body = body_of(
        Message.user("Look."),
        Message.assistant([TextBlock("So."), ToolUseBlock("tu_1", "look", {"x": "y"})]),
        Message(Role.TOOL, (ToolResultBlock("tu_1", "Seen."),)),
        tools=(LOOK,), system_prompt="Be brief.", temperature=0.5, top_p=0.5, seed=7, stop_sequences=("x",),
    )  # fmt: skip
    assert body == {
        "model": "gemini-3-flash",
        "store": False,
        "system_instruction": "Be brief.",
        "tools": [{"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA}],
        "generation_config": {
            "max_output_tokens": 64, "temperature": 0.5, "top_p": 0.5, "seed": 7, "stop_sequences": ["x"],
        },
        "input": [
            {"type": "user_input", "content": [{"type": "text", "text": "Look."}]},
            {"type": "model_output", "content": [{"type": "text", "text": "So."}]},
            {"type": "function_call", "id": "tu_1", "name": "look", "arguments": {"x": "y"}},
            {"type": "function_result", "call_id": "tu_1", "name": "look",
             "result": [{"type": "text", "text": "Seen."}]},
        ],
    }  # fmt: skip


FILM = "https://www.youtube.com/watch?v=x"
SAID: list[tuple[ContentBlock, JsonObject]] = [
    (ImageBlock(data=PNG, provider_raw=mine(resolution="high")),
     {"type": "image", "data": b64encode(PNG).decode(), "mime_type": "image/png", "resolution": "high"}),
    (ImageBlock(url="https://x.test/a.png"),
     {"type": "image", "uri": "https://x.test/a.png", "mime_type": "image/png"}),
    (AudioBlock(data=b"x", media_type="audio/wav"), {"type": "audio", "data": "eA==", "mime_type": "audio/wav"}),
    (DocumentBlock(data=b"%PDF-"), {"type": "document", "data": "JVBERi0=", "mime_type": "application/pdf"}),
    (DocumentBlock(data=b"x", media_type="video/mp4"),
     {"type": "video", "data": "eA==", "mime_type": "video/mp4"}),
    (DocumentBlock(url=FILM), {"type": "video", "uri": FILM}),
    (OpaqueBlock("video", mine(type="video", uri="files/1")), {"type": "video", "uri": "files/1"}),
]  # fmt: skip


@pytest.mark.parametrize(("block", "content"), SAID, ids=lambda value: type(value).__name__)
def test_media_of_the_user(block: ContentBlock, content: JsonObject) -> None:
    [step] = body_of(Message.user([block, TextBlock("So?")]))["input"]  # type: ignore[misc]
    assert step == {"type": "user_input", "content": [content, {"type": "text", "text": "So?"}]}


def test_a_result_has_its_pictures_and_its_failure() -> None:
    result = ToolResultBlock("tu_1", (TextBlock("No."), ImageBlock(data=PNG)), is_error=True)
    body = body_of(
        Message.user("Hi"), Message.assistant([ToolUseBlock("tu_1", "look", {})]), Message(Role.TOOL, (result,))
    )
    step = body["input"][2]  # type: ignore[index, call-overload]
    assert step["is_error"] is True
    assert [part["type"] for part in step["result"]] == ["text", "image"]


def test_a_tool_choice() -> None:
    for choice, sent in (
        (ToolChoice("auto"), "auto"), (ToolChoice("none"), "none"), (ToolChoice("required"), "any"),
        (ToolChoice("named", "look"), {"allowed_tools": {"mode": "any", "tools": ["look"]}}),
    ):  # fmt: skip
        config = body_of(tools=(LOOK,), tool_choice=choice)["generation_config"]
        assert config["tool_choice"] == sent


def test_a_strict_tool_and_an_objects_schema() -> None:
    body = body_of(tools=(msgspec.structs.replace(LOOK, strict=True),), output_schema=SCHEMA)
    assert body["generation_config"]["tool_choice"] == "validated"  # type: ignore[index, call-overload]
    assert body["response_format"] == {"type": "text", "mime_type": "application/json", "schema": SCHEMA}


def test_a_hosts_own_fields_and_tools_are_merged() -> None:
    """An effort is a level. An unknown API is an error of the configuration."""
    own: JsonObject = {
        "tools": [{"type": "google_search"}], "store": True, "previous_interaction_id": "v1_x",
        "generation_config": {"thinking_level": "high"},
    }  # fmt: skip
    tool = msgspec.structs.replace(LOOK, provider_options={"gemini": {"defer_loading": True}})
    config = body_of(reasoning_effort="low")["generation_config"]
    assert (config["thinking_level"], config["thinking_summaries"]) == ("low", "auto")
    body = body_of(tools=(tool,), provider_options={"gemini": own}, reasoning_effort="low")
    ours, theirs = body["tools"]  # type: ignore[misc]
    assert ours["defer_loading"] is True  # type: ignore[index, call-overload]
    assert theirs == {"type": "google_search"}
    assert (body["store"], body["previous_interaction_id"]) == (True, "v1_x")
    assert body["generation_config"]["thinking_level"] == "high"  # type: ignore[index, call-overload]
    with pytest.raises(ConfigurationError, match="api"):
        GeminiAdapter(AdapterConfig(options={"api": "chat"}))


# -- replies


NOTE: JsonObject = {
    "type": "url_citation", "url": "https://x.test", "start_index": 0, "end_index": 2, "title": "X",
}  # fmt: skip
SEARCH: JsonObject = {
    "type": "google_search_call", "id": "s1", "arguments": {"queries": ["x"]}, "signature": "c2ln",
}  # fmt: skip
FOUND: JsonObject = {
    "type": "google_search_result",
    "call_id": "s1",
    "result": [{"search_suggestions": "x"}, {"a": 1}],
}
DRAWN: JsonObject = {"type": "image", "data": b64encode(PNG).decode(), "mime_type": "image/png"}
SPOKEN: JsonObject = {"type": "audio", "data": "eA==", "mime_type": "audio/wav"}
CHART: JsonObject = {"type": "thought", "signature": "c2ln", "summary": [{"type": "text", "text": "Hm."}, DRAWN]}
CALL: JsonObject = {
    "type": "function_call", "id": "c1", "name": "look", "arguments": {"x": "y"}, "signature": "Yw==",
}  # fmt: skip
STEPS: list[JsonObject] = [
    CHART, SEARCH, FOUND,
    {"type": "model_output", "content": [
        {"type": "text", "text": "Hello", "annotations": [NOTE]}, DRAWN, SPOKEN, {"type": "text", "text": "there"},
    ]},
    CALL,
]  # fmt: skip
BEGUN: JsonObject = {"id": "reply-1", "status": "in_progress", "model": "gemini-3-flash"}
STREAM: list[JsonObject] = [
    i.event("interaction.created", interaction=BEGUN),
    i.event("interaction.status_update", interaction_id="reply-1", status="in_progress"),
    i.start(0, type="thought"),
    i.delta(0, "thought_summary", content={"type": "text", "text": "H"}),
    i.delta(0, "thought_summary", content={"type": "text", "text": "m."}),
    i.delta(0, "thought_summary", content=DRAWN),
    i.delta(0, "thought_signature", signature="c2ln"), i.stop(0),
    i.start(1, type="google_search_call", id="s1", arguments={}),
    i.delta(1, "google_search_call", arguments={"queries": ["x"]}, signature="c2ln"), i.stop(1),
    i.start(2, type="google_search_result", call_id="s1", result=[{"search_suggestions": "x"}]),
    i.delta(2, "google_search_result", result=[{"a": 1}]), i.stop(2),
    i.start(3, type="model_output"),
    i.delta(3, "text", text="Hel"), i.delta(3, "text", text="lo"),
    i.delta(3, "text_annotation_delta", annotations=[NOTE]),
    {**i.delta(3, "image"), "delta": DRAWN}, {**i.delta(3, "audio"), "delta": SPOKEN},
    i.delta(3, "text", text="there"), i.stop(3),
    i.start(4, **{**CALL, "arguments": {}}),
    i.delta(4, "arguments_delta", arguments='{"x":'), i.delta(4, "arguments_delta", arguments='"y"}'), i.stop(4),
    i.completed("requires_action"),
]  # fmt: skip


def test_a_reply_is_sent_back_unchanged() -> None:
    """Signatures, annotations, and steps without a canonical form are sent back in their places. The reply is the
    same streamed and whole, and a step of the provider's own is one event.
    """
    whole = read_whole(WIRE, i.interaction(*STEPS, status="requires_action"))
    streamed = read(WIRE, *STREAM)
    assert (whole.said, whole.kept) == (streamed.said, streamed.kept)
    assert whole.reply.stop_reason is streamed.reply.stop_reason is StopReason.TOOL_USE
    shown = [event.raw for event in streamed.events if isinstance(event, ProviderBlock)]
    assert shown == [SEARCH, FOUND, DRAWN, SPOKEN]
    for reading in (whole, streamed):
        content = []
        for block in reading.content:
            raw = block.provider_raw
            own = raw and msgspec.structs.replace(raw, provider="gemini", model=None)
            content.append(msgspec.structs.replace(block, provider_raw=own))
        answer = Message(Role.TOOL, (ToolResultBlock(content[-1].id, "So."),))  # type: ignore[union-attr]
        body = body_of(Message.user("Hi"), Message.assistant(content), answer)
        assert body["input"][1:-1] == STEPS  # type: ignore[index, call-overload]


def test_an_interaction_may_be_in_the_event_itself() -> None:
    """LiteLLM's proxy writes this form. Steps may come with the end alone, and a delta of no step begins one."""
    begun, over = i.event("interaction.created", **BEGUN), i.event("interaction.completed", **i.interaction())
    said = [i.start(0, type="model_output", content=[]), i.delta(0, "text", text="Hi")]
    reply = read(WIRE, begun, *said, over).reply
    assert (reply.response_id, reply.stop_reason, reply.usage.input_tokens) == ("reply-1", StopReason.END_TURN, 20)
    late: JsonObject = {"type": "model_output", "content": [{"type": "text", "text": "Hi"}]}
    assert read(WIRE, i.completed(steps=[late])).said == ["Hi"]
    assert read(WIRE, i.delta(0, "text", text="H"), i.delta(0, "text", text="i"), i.completed()).said == ["Hi"]


def test_steps_and_content_without_a_type_are_left_out() -> None:
    said: JsonObject = {"type": "model_output", "content": [7, {"odd": 1}, {"type": "text", "text": "Hi"}]}
    whole = read_whole(WIRE, i.interaction(7, {"content": []}, said))
    assert (whole.said, whole.warnings) == (["Hi"], ["unknown_content"])
    begun = i.event("step.start", index=0, step=7)
    assert read(WIRE, begun, i.delta(0, "text", text="Hi"), i.completed()).said == ["Hi"]


def test_a_stored_interaction_repeats_what_was_said_to_it() -> None:
    said: JsonObject = {"type": "user_input", "content": [{"type": "text", "text": "Hi"}]}
    assert read_whole(WIRE, i.interaction(said, STEPS[3], status="completed")).said[0] == "Hello"


def test_further_fields_of_an_interaction() -> None:
    about: JsonObject = {"continuation_token": "t", "environment_id": "e", "created": "2026-01-01", "updated": "x"}
    whole = read_whole(WIRE, i.interaction(STEPS[3], service_tier="priority", **about)).reply
    assert (whole.provider_details, whole.usage.service_tier) == (about, "priority")
    streamed = read(WIRE, i.delta(0, "text", text="Hi"), i.completed(service_tier="priority", **about)).reply
    assert (streamed.provider_details, streamed.usage.service_tier) == (about, "priority")


def test_an_event_of_a_new_kind_is_the_providers_own() -> None:
    new = i.event("mood.change", mood="good")
    told = read(WIRE, i.delta(0, "text", text="Hi"), new, i.completed())
    assert [event.raw for event in told.events if isinstance(event, ProviderEvent)] == [new]
    assert told.warnings == ["unknown_event"]


COUNTED: JsonObject = {
    "total_input_tokens": 100, "total_cached_tokens": 40, "total_output_tokens": 50, "total_thought_tokens": 20,
    "total_tool_use_tokens": 7, "total_tokens": 177,
    "input_tokens_by_modality": [{"modality": "text", "tokens": 70}, {"modality": "audio", "tokens": 30}],
    "cached_tokens_by_modality": [{"modality": "audio", "tokens": 10}],
    "output_tokens_by_modality": [{"modality": "image", "tokens": 15}],
    "grounding_tool_count": [{"type": "google_search", "count": 2}, {"type": "google_maps", "count": 1}],
}  # fmt: skip


def test_a_usage_in_disjoint_buckets() -> None:
    usage = read_whole(WIRE, i.interaction(STEPS[3], usage=COUNTED)).usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (67, 40, 70)
    assert usage.reasoning_tokens == 20
    assert usage.details == {
        "audio_input": 20, "audio_cache_read": 10, "image_output": 15, "web_search": 2, "map_search": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("error", "kind"), [
    ({"code": "unavailable", "message": "busy"}, OverloadedError),
    ({"code": "503", "message": "busy"}, OverloadedError),
    ({"code": "429", "message": "slow down"}, RateLimitError),
    ({"message": "odd"}, AdapterError),
])  # fmt: skip
def test_a_failure_in_the_stream_or_as_a_status(error: JsonObject, kind: type[AdapterError]) -> None:
    for body in ([i.event("error", error=error)], [i.completed("failed", errors=[error])]):
        found = read_pieces(WIRE, [WIRE.stream(i.delta(0, "text", text="Hi"), *body)]).error
        assert isinstance(found, kind)
        assert str(error["message"]) in str(found)


# -- Schemas in Gemini's form: each rule is applied, and accepted schemas are not changed.


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
    ({"properties": {"a": {"type": "string"}}, "allOf": [{"properties": {"a": {"type": "number"}}}]},
        {"properties": {"a": {"type": "string"}},
         "description": 'allOf: [{"properties":{"a":{"type":"number"}}}]'}),
    ({"items": {"type": "string"}, "allOf": [{"items": {"minLength": 2}}]},
        {"items": {"type": "string"}, "description": 'allOf: [{"items":{"minLength":2}}]'}),
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
def test_refused_keywords_are_rewritten_or_become_text(given: JsonObject, sent: JsonObject) -> None:
    before = msgspec.json.encode(given)
    assert fit_schema(given) == sent
    assert msgspec.json.encode(given) == before, "the original stays as it was"


def test_a_changed_schema_is_fitted_again() -> None:
    """The cache of fitted schemas uses the content of the schema as its key. An accepted schema is not changed,
    even if its properties are named like keywords.
    """
    assert fit_schema(TAKEN) is TAKEN
    assert fit_schema({"deprecated": True}) == {}
    schema: JsonObject = {"type": "integer", "multipleOf": 2}
    first = fit_schema(schema)
    assert fit_schema(dict(schema)) is first
    schema["multipleOf"] = 3
    assert fit_schema(schema) != first


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
    """The fitted schema has no refused keyword, and fitting it again changes nothing."""
    fitted = fit_schema(schema)
    assert not keywords(fitted) & REFUSED
    assert fit_schema(fitted) == fitted


def test_a_tool_without_parameters_is_recognised() -> None:
    """A tool with free keys has parameters."""
    closed: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    assert [takes_nothing(schema) for schema in ({"type": "object"}, closed)] == [True, True]
    for more in ({"properties": {"a": {}}}, {"additionalProperties": True}, {"minProperties": 1}):
        assert not takes_nothing({"type": "object", **more})

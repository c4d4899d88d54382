"""The reading of requests from Gemini's clients: settings, tools, messages, calls and results."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice
from callboard.engine.gateway.failures import BadRequest
from callboard.engine.gateway.gemini_contents import token_of
from callboard.engine.gateway.gemini_replies import WIRE
from callboard.engine.gateway.gemini_requests import DEFAULT_OUTPUT, effort_of, json_schema

from ..support.canonical_requests import PNG
from ..support.wires.gemini import text, thought
from ..support.wires.reading import in_short
from .gemini_clients import (
    AT,
    HELLO,
    MODEL,
    PNG_TEXT,
    SIGNATURE,
    adapter,
    again,
    config,
    declared,
    lost,
    model,
    own,
    read,
    results,
    user,
)


def test_a_whole_request_is_read() -> None:
    asked = read(
        user({"text": "What is this?"}, {"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}}),
        model({"text": "A call."}, {"functionCall": {"id": "c1", "name": "look", "args": {"at": 1}}}),
        user({"functionResponse": {"id": "c1", "name": "look", "response": {"output": "A cat."}}}),
        systemInstruction={"role": "user", "parts": [{"text": "Be brief."}]},
        tools=[{"functionDeclarations": [{"name": "look", "description": "Looks.", "parametersJsonSchema": AT}]}],
        toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
        generationConfig={**{"maxOutputTokens": 50, "temperature": 0.5, "topP": 0.9, "seed": 3,
            "stopSequences": ["END"]}, **{"presencePenalty": 0.1, "frequencyPenalty": -0.1, "candidateCount": 1},
            "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
            "responseMimeType": "application/json", "responseJsonSchema": AT},
    )  # fmt: skip
    request = asked.request
    assert asked.losses == ()
    assert (asked.model, request.model, request.request_id) == (MODEL, MODEL, "")
    assert [message.role for message in request.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert request.messages[0].content == (TextBlock("What is this?"), ImageBlock(data=PNG))
    assert [in_short(block) for block in request.messages[1].content] == ["A call.", ("look", {"at": 1}, "c1")]
    assert request.messages[2].content == (ToolResultBlock("c1", "A cat."),)
    assert request.system_prompt == "Be brief."
    assert [(tool.name, tool.description, tool.input_schema) for tool in request.tools] == [("look", "Looks.", AT)]
    assert request.tool_choice == ToolChoice("named", "look")
    assert (request.max_output_tokens, request.default_output_limit) == (50, False)
    assert (request.temperature, request.top_p, request.seed) == (0.5, 0.9, 3)
    assert (request.presence_penalty, request.frequency_penalty) == (0.1, -0.1)
    assert (request.stop_sequences, request.reasoning_effort) == (("END",), "low")
    assert request.output_schema == AT
    assert request.provider_options == {}


def test_without_a_limit_the_reply_has_the_default_one() -> None:
    request = config()
    assert (request.max_output_tokens, request.default_output_limit) == (DEFAULT_OUTPUT, True)


def snake(value: Json, *, at_keys: bool = True) -> Json:
    """A body whose structural keys are in snake case, as REST clients write it."""
    if isinstance(value, list):
        return [snake(item, at_keys=at_keys) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        ("".join(f"_{c.lower()}" if c.isupper() else c for c in key) if at_keys else key): snake(
            inner, at_keys=at_keys and key not in ("args", "response", "properties")
        )
        for key, inner in value.items()
    }


def test_keys_in_snake_case_mean_the_same() -> None:
    body: JsonObject = {
        "contents": [
            user({"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}}),
            model({"functionCall": {"name": "look", "args": {"camelCase": 1}}, "thoughtSignature": SIGNATURE}),
            user({"functionResponse": {"name": "look", "response": {"camelCase": 2}}}),
        ],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "generationConfig": {"maxOutputTokens": 5, "thinkingConfig": {"thinkingBudget": 1024}, "topK": 3},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }
    in_snake = snake(body)
    assert isinstance(in_snake, dict)
    assert "function_call" in str(in_snake)
    one, other = (WIRE.read_request(each, {}, model=MODEL) for each in (body, in_snake))
    assert other.request == one.request
    assert other.losses == one.losses


@pytest.mark.parametrize(("schema", "expected"), [
    ({"type": "STRING"}, {"type": "string"}),
    ({"type": "TYPE_UNSPECIFIED", "description": "x"}, {"description": "x"}),
    ({"type": "string", "format": "enum", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
    ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
    ({"type": "STRING", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
    ({"anyOf": [{"type": "STRING"}], "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ({"ref": "#/$defs/a", "nullable": True}, {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}),
    ({"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "2"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 2}),
    ({"type": "OBJECT", "properties": {"any_of": {"type": "STRING"}, "b": {}},
        "property_ordering": ["b", "any_of"]}, {"type": "object",
        "properties": {"b": {}, "any_of": {"type": "string"}}}),
    ({"any_of": [{"type": "NUMBER", "example": 1}], "defs": {"a": {"type": "BOOLEAN"}}},
        {"anyOf": [{"type": "number", "examples": [1]}], "$defs": {"a": {"type": "boolean"}}}),
    ({"type": "OBJECT", "additional_properties": {"type": "STRING"}, "title": "T"},
        {"type": "object", "additionalProperties": {"type": "string"}, "title": "T"}),
])  # fmt: skip
def test_googles_schemas_become_json_schema(schema: JsonObject, expected: Any) -> None:
    found: Any = json_schema(schema, "schema")
    assert found == expected
    assert list(found.get("properties") or ()) == list(expected.get("properties") or ())


def test_allowed_functions_have_the_names_of_the_request() -> None:
    names: list[Any] = ["mcp:files.read", "mcp_files.read", "plain"]
    mode: JsonObject = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": names[:2]}}
    request = read(HELLO, tools=declared(*names), toolConfig=mode).request
    only_geminis: Any = request.provider_options["gemini"]
    allowed = [tool.name for tool in request.tools[:2]]
    assert only_geminis["toolConfig"]["functionCallingConfig"] == {"allowedFunctionNames": allowed}


@pytest.mark.parametrize(("schema", "expected"), [
    ({}, {"type": "object", "properties": {}}),
    ({"parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}},
        {"type": "object", "properties": {"a": {"type": "string"}}}),
    ({"parametersJsonSchema": {"properties": {"a": True}}}, {"type": "object", "properties": {"a": True}}),
    ({"parametersJsonSchema": {"anyOf": [AT]}}, {"anyOf": [AT]}),
    ({"parameters": {"type": "OBJECT", "properties": {}, "required": ["a"]}},
        {"type": "object", "properties": {}, "required": []}),
])  # fmt: skip
def test_any_declaration_is_a_tool(schema: JsonObject, expected: JsonObject) -> None:
    assert read(HELLO, tools=declared("f", **schema)).request.tools[0].input_schema == expected


@pytest.mark.parametrize(("mode", "choice"), [
    ({"mode": "AUTO"}, ToolChoice()),
    ({"mode": "auto"}, ToolChoice()),
    ({"mode": "NONE"}, ToolChoice("none")),
    ({"mode": "ANY"}, ToolChoice("required")),
    ({"mode": "ANY", "allowed_function_names": ["a"]}, ToolChoice("named", "a")),
    ({"mode": "MODE_UNSPECIFIED"}, None),
    ({}, None),
])  # fmt: skip
def test_modes_of_calling_are_read(mode: JsonObject, choice: ToolChoice | None) -> None:
    asked = read(HELLO, tools=declared("a", "b"), tool_config={"function_calling_config": mode})
    assert asked.request.tool_choice == choice
    assert asked.losses == ()


def test_validated_calls_are_strict_tools() -> None:
    mode: JsonObject = {"functionCallingConfig": {"mode": "VALIDATED"}}
    request = read(HELLO, tools=declared("a", "b"), toolConfig=mode).request
    assert [tool.strict for tool in request.tools] == [True, True]
    assert request.tool_choice is None


def test_a_choice_among_some_tools_is_a_loss_elsewhere() -> None:
    mode: JsonObject = {"mode": "ANY", "allowedFunctionNames": ["a", "b"]}
    asked = read(HELLO, tools=declared("a", "b", "c"), toolConfig={"functionCallingConfig": mode})
    assert lost(asked) == ["allowedFunctionNames was not sent: the model may call any tool of the request"]
    assert again(asked)["toolConfig"] == {"functionCallingConfig": mode}


@pytest.mark.parametrize(("tools", "message"), [
    (declared("a", "a"), "Duplicate function declaration found: a"),
    (declared(""), "Name cannot be empty"),
    ([{"functionDeclarations": [{"name": "a", "parameters": "x"}]}], "parameters must be an object"),
])  # fmt: skip
def test_tools_that_mean_nothing_are_refused(tools: Json, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read(HELLO, tools=tools)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: JsonObject = {"type": "STRING"}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    with pytest.raises(BadRequest, match="nested too deeply"):
        read(HELLO, tools=declared("f", parameters={"type": "OBJECT", "properties": {"a": schema}}))


ONLY_GEMINIS: list[tuple[Any, str]] = [
    ({"tools": [{"googleSearch": {}}]}, "the tool googleSearch"),
    ({"tools": [{"code_execution": {}}]}, "the tool codeExecution"),
    ({"tools": [{"urlContext": {}}]}, "the tool urlContext"),
    ({"tools": declared("a", behavior="NON_BLOCKING")}, "behavior of the tool a"),
    ({"tools": declared("a", response={"type": "OBJECT"})}, "response of the tool a"),
    ({"toolConfig": {"retrievalConfig": {"languageCode": "de"}}}, "retrievalConfig"),
    ({"safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]}, "safetySettings"),
    ({"cachedContent": "cachedContents/x"}, "cachedContent"),
    ({"labels": {"team": "a"}}, "labels"),
    ({"aNewField": [1]}, "aNewField"),
    *(({"generationConfig": {name: value}}, name) for name, value in {**{"topK": 3, "responseLogprobs": True,
        "logprobs": 2, "mediaResolution": "MEDIA_RESOLUTION_LOW"}, **{"speechConfig": {"languageCode": "de"},
        "responseModalities": ["TEXT", "IMAGE"]}, **{"candidateCount": 2,
        "imageConfig": {"aspectRatio": "1:1"}}}.items()),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "name"), ONLY_GEMINIS, ids=[name for _, name in ONLY_GEMINIS])
def test_what_only_gemini_has_goes_to_gemini_and_is_a_loss_elsewhere(fields: JsonObject, name: str) -> None:
    asked = read(HELLO, **fields)
    assert len(asked.losses) == 1
    assert lost(asked)[0].startswith(f"{name} is not sent")
    sent, given = again(asked), WIRE.read_request({**fields, "contents": [HELLO]}, {}, model=MODEL).body
    for field, value in given.items():
        found = sent[field]
        if isinstance(value, dict) and isinstance(found, dict):
            assert value.items() <= found.items()
        elif field != "contents":
            assert str(found).lower().replace("_", "") == str(value).lower().replace("_", "")


@pytest.mark.parametrize(("thinking", "effort", "thoughts", "losses"), [
    ({"thinkingLevel": "HIGH", "includeThoughts": True}, "high", True, 0),
    ({"thinkingLevel": "minimal"}, "minimal", False, 0),
    ({"thinkingBudget": 0}, "none", False, 0),
    ({"thinkingBudget": 8192}, "medium", False, 0),
    ({"thinkingBudget": 5000}, "medium", False, 1),
    ({"thinkingBudget": -1}, "medium", False, 1),
    ({"includeThoughts": True}, None, True, 0),
    ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None, False, 0),
])  # fmt: skip
def test_thinking_is_an_effort(thinking: JsonObject, effort: str | None, thoughts: bool, losses: int) -> None:
    asked = read(HELLO, generationConfig={"thinkingConfig": thinking})
    assert asked.request.reasoning_effort == effort
    assert asked.options["include_thoughts"] is thoughts
    assert len(asked.losses) == losses


def test_gemini_gets_an_odd_budget_as_it_is() -> None:
    asked = WIRE.read_request(
        {"contents": [HELLO], "generationConfig": {"thinkingConfig": {"thinkingBudget": 5000}}}, {}, model=MODEL
    )
    assert again(asked)["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 5000


def test_the_nearest_effort_is_found_by_ratio() -> None:
    assert [effort_of(budget) for budget in (100, 700, 1500, 4000, 16_000, 24_576, 100_000)] == [
        "minimal", "minimal", "low", "medium", "high", "high", "xhigh",
    ]  # fmt: skip


AS_VALUE: JsonObject = {
    "type": "object",
    "properties": {"value": {"type": "array"}},
    "required": ["value"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(("fields", "schema"), [
    ({"responseMimeType": "application/json"}, {"type": "object"}),
    ({"responseMimeType": "application/json", "responseSchema": {"type": "ARRAY"}}, AS_VALUE),
    ({"responseMimeType": "application/json", "response_json_schema": AT}, AT),
    ({"responseMimeType": "text/plain"}, None),
    ({"responseMimeType": "text/xml"}, None),
])  # fmt: skip
def test_the_form_of_the_reply_is_a_schema(fields: JsonObject, schema: JsonObject | None) -> None:
    asked = read(HELLO, generationConfig=fields)
    assert asked.request.output_schema == schema
    assert lost(asked) == (
        ["responseMimeType text/xml is not sent to another protocol: only this protocol has it"]
        if "xml" in str(fields)
        else []
    )


@pytest.mark.parametrize(
    "fields", [{"temperature": "hot"}, {"maxOutputTokens": 0}, {"thinkingConfig": {"thinkingBudget": "much"}}]
)
def test_settings_that_mean_nothing_are_refused(fields: JsonObject) -> None:
    with pytest.raises(BadRequest):
        config(**fields)


def test_a_count_of_tokens_may_have_a_whole_request() -> None:
    """The Gemini API's countTokens accepts contents or a whole request."""
    inner: JsonObject = {"model": f"models/{MODEL}", "contents": [HELLO], "system_instruction": "Be brief."}
    asked = WIRE.read_request({"generateContentRequest": inner}, {})
    assert (asked.model, asked.request.system_prompt) == (MODEL, "Be brief.")
    assert WIRE.write_token_count(5)["totalTokens"] == 5


@pytest.mark.parametrize("role", ["user", "", None])
def test_a_content_without_a_role_is_the_users(role: Json) -> None:
    content: JsonObject = {"parts": [{"text": "Hi"}], **({} if role is None else {"role": role})}
    assert read(content).request.messages == (Message.user("Hi"),)


@pytest.mark.parametrize("role", ["user", "function", "tool", None])
def test_results_may_come_in_any_role_but_the_models(role: Json) -> None:
    result: JsonObject = {"functionResponse": {"name": "f", "response": {"output": "x"}}}
    content: JsonObject = {"parts": [result, {"text": "Go on"}], **({} if role is None else {"role": role})}
    messages = read(HELLO, model({"functionCall": {"name": "f"}}), content).request.messages
    assert [message.role for message in messages[1:]] == [Role.ASSISTANT, Role.TOOL, Role.USER]


def test_one_object_is_a_list_of_one() -> None:
    """Google's examples have a system instruction whose parts are an object."""
    body: JsonObject = {
        "contents": {"parts": {"text": "Hi"}},
        "system_instruction": {"parts": {"text": "Be brief."}},
    }
    request = WIRE.read_request(body, {}, model=MODEL).request
    assert (request.messages, request.system_prompt) == ((Message.user("Hi"),), "Be brief.")


def test_chunks_of_a_stream_in_the_history_are_one_message() -> None:
    """The SDK's chats append each chunk of a stream as a separate content."""
    messages = read(
        HELLO, model({"text": "It is "}), model({"text": "wa"}, {"text": "rm."}), HELLO
    ).request.messages
    assert messages[1] == Message.assistant("It is warm.")


def test_calls_without_ids_are_answered_by_name_and_order() -> None:
    def called(name: str) -> JsonObject:
        return {"functionCall": {"name": name, "args": {}}}

    def answered(name: str, said: str, **more: Json) -> JsonObject:
        return {"functionResponse": {"name": name, "response": {"output": said}, **more}}

    messages = read(
        HELLO,
        model(called("a"), called("b"), called("a")),
        user(answered("b", "1"), answered("a", "2"), answered("a", "3", id="the-clients-own")),
        model(called("a")),
        user(answered("a", "4")),
    ).request.messages
    said = {block.tool_use_id: block.text for block in results(messages)}
    calls = [block for message in messages for block in message.tool_uses]
    assert [(block.name, said[block.id]) for block in calls] == [("a", "2"), ("b", "1"), ("a", "3"), ("a", "4")]


def test_a_result_of_no_call_is_reported_by_the_adapter() -> None:
    request = read(HELLO, user({"functionResponse": {"name": "a", "response": {"output": "x"}}})).request
    call = adapter.write_request(msgspec.structs.replace(request, model=f"gemini:{MODEL}"), stream=False)
    assert [loss.reason for loss in call.losses] == ["its tool call is missing"]


@pytest.mark.parametrize(("response", "said", "is_error"), [
    ({"output": "warm"}, "warm", False),
    ({"output": {"c": 20}}, '{"c":20}', False),
    ({"result": [1, 2]}, "[1,2]", False),
    ({"error": "no such file"}, "no such file", True),
    ({"c": 20, "wind": "low"}, '{"c":20,"wind":"low"}', False),
    ({"output": "x", "error": ""}, '{"output":"x","error":""}', False),
    ({}, "", False),
    (None, "", False),
])  # fmt: skip
def test_a_response_is_text_or_an_error(response: Json, said: str, is_error: bool) -> None:
    result: JsonObject = {"functionResponse": {"name": "a", "response": response}}
    block = next(results(read(HELLO, model({"functionCall": {"name": "a"}}), user(result)).request.messages))
    assert (block.text, block.is_error) == (said, is_error)


def test_a_result_may_hold_files() -> None:
    files: list[Json] = [
        {"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0=", "displayName": "a.pdf"}},
        {"fileData": {"mimeType": "text/plain", "fileUri": "gs://bucket/a.txt"}},
        SOUND,
    ]
    result: JsonObject = {"functionResponse": {"name": "a", "response": {"output": "See."}, "parts": files}}
    block = next(results(read(HELLO, model({"functionCall": {"name": "a"}}), user(result)).request.messages))
    assert [type(part) for part in block.content] == [
        TextBlock, ImageBlock, DocumentBlock, DocumentBlock, OpaqueBlock,
    ]  # fmt: skip


SOUND: JsonObject = {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}
FILES = "https://generativelanguage.googleapis.com/v1beta/files/abc"


@pytest.mark.parametrize(("part", "block"), [
    ({"text": "a", "videoMetadata": {"fps": 1}}, TextBlock("a", own({"videoMetadata": {"fps": 1}}))),
    (SOUND, AudioBlock(data=b"RIFF", media_type="audio/wav")),
    ({"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0", "displayName": "a.pdf"}},
        DocumentBlock(data=b"%PDF-", media_type="application/pdf", name="a.pdf")),
    ({"inlineData": {"data": PNG_TEXT}}, ImageBlock(data=PNG)),
    ({"inlineData": {"mimeType": "video/mp4", "data": "_-8="}, "videoMetadata": {"fps": 2}},
        DocumentBlock(data=b"\xff\xef", media_type="video/mp4",
        provider_raw=own({"videoMetadata": {"fps": 2}}))),
    ({"fileData": {"mimeType": "image/png", "fileUri": "https://x.test/a"}},
        ImageBlock(url="https://x.test/a", media_type="image/png")),
    ({"fileData": {"fileUri": "https://x.test/a.jpg?v=1"}}, ImageBlock(url="https://x.test/a.jpg?v=1")),
    ({"text": "a", "functionResponse": None, "inlineData": None}, TextBlock("a")),
    ({"fileData": {"fileUri": "https://youtu.be/abc"}}, DocumentBlock(url="https://youtu.be/abc")),
    ({"fileData": {"mimeType": "audio/ogg", "fileUri": "gs://b/a.ogg"}},
        AudioBlock(url="gs://b/a.ogg", media_type="audio/ogg")),
    ({"fileData": {"mimeType": "image/png", "fileUri": FILES}},
        OpaqueBlock("fileData", own({"fileData": {"mimeType": "image/png", "fileUri": FILES}}))),
    ({"newKind": {"x": 1}, "thought": False}, OpaqueBlock("newKind",
        own({"newKind": {"x": 1}, "thought": False}))),
])  # fmt: skip
def test_parts_of_the_user_are_read(part: JsonObject, block: ContentBlock) -> None:
    """A file that only Gemini's servers can read becomes an opaque block, so that adapters report its loss."""
    assert read(user(part)).request.messages == (Message.user((block,)),)


@pytest.mark.parametrize(("parts", "blocks"), [
    ([text("a"), text("b", SIGNATURE), text("c")], [TextBlock("abc",
        own({"signatures": [{"start": 1, "end": 2, "signature": SIGNATURE}]}))]),
    ([text("", SIGNATURE)], [OpaqueBlock("thoughtSignature", own({"text": "",
        "thoughtSignature": SIGNATURE}))]),
    ([thought("a"), thought("b", SIGNATURE), text("c")], [ThinkingBlock("ab", SIGNATURE, own({"start": 1})),
        TextBlock("c")]),
    ([thought("a")], [ThinkingBlock("a", None, own({}))]),
    ([thought("a", token_of("foreign")), text("b")], [ThinkingBlock("a"), TextBlock("b")]),
    ([text("a", token_of("foreign")), text("", token_of("foreign"))], [TextBlock("a")]),
    ([{"functionCall": {"name": "f"}, "thoughtSignature": "skip_thought_signature_validator"}],
        [ToolUseBlock("call_1", "f", {})]),
    ([{"functionCall": {"id": "x", "name": "f"}, "thoughtSignature": SIGNATURE}],
        [ToolUseBlock("x", "f", {}, provider_raw=own({"id": "x", "thoughtSignature": SIGNATURE}))]),
    ([{"executableCode": {"code": "1"}, "thoughtSignature": SIGNATURE},
        {"codeExecutionResult": {"output": "1"}}], [OpaqueBlock("executableCode",
        own({"executableCode": {"code": "1"}, "thoughtSignature": SIGNATURE})),
        OpaqueBlock("codeExecutionResult", own({"codeExecutionResult": {"output": "1"}}))]),
    ([{"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}}],
        [ImageBlock(data=PNG, provider_raw=own({"inlineData": {"mimeType": "image/png"}}))]),
    ([SOUND], [OpaqueBlock("inlineData", own(SOUND))]),
])  # fmt: skip
def test_parts_of_the_model_are_read(parts: list[Json], blocks: list[ContentBlock]) -> None:
    """A signature that the gateway or the client made up counts as no signature."""
    assert read(HELLO, model(*parts)).request.messages[1] == Message.assistant(blocks)


@pytest.mark.parametrize(("contents", "message"), [
    ([], "contents are required"),
    ([{"role": "user", "parts": []}], "contents are required"),
    ("Hi", "contents must be a list"),
    ([["Hi"]], r"contents\[0\] must be an object"),
    ([{"role": "system", "parts": [{"text": "x"}]}], "Please use a valid role: user, model."),
    ([user({})], "must have one initialized field"),
    ([user({"inlineData": {"mimeType": "image/png", "data": "%%%"}})], "Base64 decoding failed"),
    ([user({"inlineData": {"data": "AAAA"}})], "inline_data"),
    ([model({"functionCall": {"args": {}}})], "Name cannot be empty"),
    ([model({"functionCall": {"name": "f", "args": [1]}})], "args must be an object"),
])  # fmt: skip
def test_contents_that_mean_nothing_are_refused(contents: Json, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        WIRE.read_request({"contents": contents}, {}, model=MODEL)
    assert refused.value.failure.kind == "invalid_request"
    assert refused.value.failure.param is not None

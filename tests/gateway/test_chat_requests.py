"""The reading of requests from clients of Chat Completions: settings, messages, calls and tools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS
from callboard.bus.errors import CallboardError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from callboard.engine.gateway.chat_replies import WIRE
from callboard.engine.gateway.failures import BadRequest

from ..support.canonical_requests import canonical_requests
from .chat_kit import (
    PROVIDER,
    adapters_body,
    asked,
)

PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="
OBJECT: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ: JsonObject = {"type": "function", "function": {"name": "read", "parameters": OBJECT}}


def read_message(*messages: JsonObject) -> tuple[Message, ...]:
    given: list[Json] = [*messages]
    return asked(messages=given).request.messages


def said(part: JsonObject) -> ContentBlock:
    (message,) = read_message({"role": "user", "content": [part]})
    return message.content[0]


def replied(**fields: Json) -> tuple[ContentBlock, ...]:
    return read_message({"role": "user", "content": "Hi"}, {"role": "assistant", **fields})[1].content


def losses_of(**body: Json) -> str:
    return "\n".join(warning.message for warning in asked(**body).losses)


def refusal_of(**body: Json) -> tuple[str, str | None, str | None]:
    with pytest.raises(BadRequest) as caught:
        asked(**body)
    failure = caught.value.failure
    return failure.message, failure.param, failure.code


# --- The mirror of the adapter ---


SERVERS = ["default", "openai", "openrouter", "mistral", "deepseek", "gemini", "vllm"]


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(request=canonical_requests(["m"]), server=st.sampled_from(SERVERS))
def test_a_request_that_the_adapter_wrote_is_read_as_the_same_request(
    request: CanonicalRequest, server: str
) -> None:
    quirks = QUIRKS[server]
    try:
        sent = adapters_body(request, quirks)
    except CallboardError:
        return  # this server does not support the request
    again = adapters_body(WIRE.read_request(sent, {}).request, quirks)
    assert without_empty_reasoning(again) == without_empty_reasoning(sent)


def without_empty_reasoning(body: dict[str, Any]) -> dict[str, Any]:
    """The body without empty reasoning, which clients send without need."""
    for message in body["messages"]:
        for field in ("reasoning", "reasoning_content"):
            if message.get(field) == "":
                del message[field]
    return body


_WORDS = st.text("ab \n☃", min_size=1, max_size=6).filter(str.strip)
_ARGUMENTS: st.SearchStrategy[JsonObject] = st.dictionaries(
    _WORDS, st.none() | st.integers(0, 9) | _WORDS, max_size=2
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """Turns of a user, with calls of tools and their results."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        messages.append(Message.user(draw(_WORDS)))
        count = draw(st.integers(0, 3))
        if count:
            calls = [
                ToolUseBlock(
                    f"call_{turn}_{at}",
                    draw(st.sampled_from(["read", "write"])),
                    draw(_ARGUMENTS),
                    provider_raw=ProviderRaw(PROVIDER, {"id": f"call_{turn}_{at}"}),
                )
                for at in range(count)
            ]
            text = draw(st.none() | _WORDS)
            texts = [] if text is None else [TextBlock(text)]
            messages.append(Message(Role.ASSISTANT, (*texts, *calls)))
            messages.append(Message(Role.TOOL, tuple(ToolResultBlock(call.id, draw(_WORDS)) for call in calls)))
        messages.append(Message.assistant(draw(_WORDS)))
    return tuple(messages)


@settings(max_examples=200)
@given(
    messages=histories(),
    system=st.none() | _WORDS,
    stop=st.lists(_WORDS, max_size=3),
    numbers=st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
    effort=st.sampled_from([None, "none", "low", "high"]),
    parallel=st.none() | st.booleans(),
    mode=st.sampled_from([None, "auto", "none", "required"]),
)
def test_a_canonical_request_comes_back_as_itself(
    messages: tuple[Message, ...],
    system: str | None,
    stop: list[str],
    numbers: list[float | None],
    effort: str | None,
    parallel: bool | None,
    mode: Any,
) -> None:
    temperature, top_p, frequency, presence = numbers
    request = CanonicalRequest(
        request_id="", model="m", messages=messages, max_output_tokens=100, system_prompt=system,
        stop_sequences=tuple(stop), temperature=temperature, top_p=top_p, frequency_penalty=frequency,
        presence_penalty=presence, reasoning_effort=effort, parallel_tool_calls=parallel,
        tool_choice=None if mode is None else ToolChoice(mode),
        tools=(ToolDefinition("read", "Reads.", OBJECT, strict=False), ToolDefinition("write", strict=False)),
    )  # fmt: skip
    assert WIRE.read_request(adapters_body(request), {}).request == request


# --- Settings ---


@pytest.mark.parametrize(("body", "fields"), [
    ({"max_tokens": 5}, {"max_output_tokens": 5, "default_output_limit": False}),
    ({"max_completion_tokens": 5, "max_tokens": 9}, {"max_output_tokens": 5}),
    ({}, {"max_output_tokens": 16_384, "default_output_limit": True}),
    ({"max_tokens": -1}, {"default_output_limit": True}),
    ({"stop": "END"}, {"stop_sequences": ("END",)}),
    ({"stop": ["a", "b"]}, {"stop_sequences": ("a", "b")}),
    ({"seed": 7.0, "temperature": 0, "top_p": 0.5}, {"seed": 7, "temperature": 0, "top_p": 0.5}),
    ({"safety_identifier": "u_1"}, {"user": "u_1"}),
    ({"verbosity": "low", "reasoning_effort": "minimal"}, {"verbosity": "low", "reasoning_effort": "minimal"}),
    ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
    ({"reasoning": {"enabled": False}}, {"reasoning_effort": "none"}),
    ({"reasoning": {"max_tokens": 500}}, {"reasoning_effort": "low"}),
    ({"thinking": {"type": "enabled", "budget_tokens": 4000}}, {"reasoning_effort": "medium"}),
    ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
    ({"response_format": {"type": "text"}}, {"output_schema": None}),
    ({"response_format": {"type": "json_object"}}, {"output_schema": {"type": "object"}}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "Person", "schema": OBJECT}}},
        {"output_schema": {**OBJECT, "title": "Person"}}),
])  # fmt: skip
def test_settings_are_read(body: JsonObject, fields: JsonObject) -> None:
    request = asked(**body).request
    assert {name: getattr(request, name) for name in fields} == fields


@pytest.mark.parametrize("body", [
    {"logit_bias": {"50256": -100}},
    {"logprobs": True, "top_logprobs": 3},
    {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    {"prediction": {"type": "content", "content": "x"}},
    {"service_tier": "flex"},
    {"store": True, "metadata": {"a": "b"}},
    {"web_search_options": {}},
    {"top_k": 40, "min_p": 0.1},
    {"provider": {"order": ["x"]}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"response_format": {"type": "grammar", "grammar": "root ::= x"}},
    {"reasoning_effort": "default"},
    {"reasoning": {"effort": "extreme"}},
    {"thinking": {"type": "odd"}},
])  # fmt: skip
def test_a_field_without_a_canonical_word_reaches_its_protocol_and_is_a_loss_elsewhere(body: JsonObject) -> None:
    client = asked(**body)
    sent = adapters_body(client.request)
    assert {name: sent[name] for name in body} == body
    assert all(name in losses_of(**body) for name in body)


@pytest.mark.parametrize("body", [
    {"n": 1},
    {"store": False},
    {"modalities": ["text"]},
    {"service_tier": "auto"},
    {"logprobs": False},
    {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"prompt_cache_key": "k"},
    {"metadata": {}},
    {"logit_bias": None},
])  # fmt: skip
def test_a_field_that_asks_for_nothing_is_no_loss(body: JsonObject) -> None:
    assert not asked(**body).losses


SAMPLES: JsonObject = {
    "audio": {"voice": "alloy", "format": "wav"}, "frequency_penalty": 0.5, "functions": [{"name": "read"}],
    "logit_bias": {"1": 5}, "logprobs": True, "max_completion_tokens": 5, "max_tokens": 5,
    "messages": [{"role": "user", "content": "Bye"}], "metadata": {"a": "b"}, "modalities": ["audio"],
    "model": "other", "moderation": {"model": "m"}, "n": 2, "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"}, "presence_penalty": 0.5, "prompt_cache_key": "k",
    "prompt_cache_options": {"ttl": "12h"}, "prompt_cache_retention": "24h", "reasoning_effort": "low",
    "response_format": {"type": "json_object"}, "safety_identifier": "u", "seed": 1, "service_tier": "flex",
    "stop": "x", "store": True, "stream_options": {"include_usage": True}, "temperature": 0.5,
    "tool_choice": "auto", "tools": [READ], "top_logprobs": 3, "top_p": 0.5, "user": "u", "verbosity": "low",
    "web_search_options": {},
}  # fmt: skip


def test_no_field_of_the_vendor_is_ignored_silently() -> None:
    """Each field changes the canonical request or is a loss. A `function_call` needs functions."""
    plain, ignored = asked(), []
    for field in CompletionCreateParamsBase.__annotations__.keys() - {"function_call"}:
        told = asked(**{field: SAMPLES[field]})
        if (told.request, told.losses, told.options) == (plain.request, plain.losses, plain.options):
            ignored.append(field)
    assert ignored == []


def test_several_choices_are_a_loss_and_are_not_bought() -> None:
    client = asked(n=3)
    assert "n" not in adapters_body(client.request)
    assert "n is not sent to another protocol: another protocol returns one choice" in losses_of(n=3)


def test_top_k_has_its_place_in_the_protocols_that_know_it() -> None:
    options = asked(top_k=40).request.provider_options
    assert options["anthropic"] == {"top_k": 40}
    assert options["gemini"] == {"generationConfig": {"topK": 40}}


def test_a_web_search_is_the_own_search_of_each_protocol() -> None:
    place: JsonObject = {"country": "IT", "city": "Rome"}
    search: JsonObject = {
        "search_context_size": "low",
        "user_location": {"type": "approximate", "approximate": place},
    }
    options = asked(web_search_options=search).request.provider_options
    location = {"type": "approximate", **place}
    assert options["openai"] == {
        "tools": [{"type": "web_search", "user_location": location, "search_context_size": "low"}]
    }
    assert options["anthropic"] == {
        "tools": [{"type": "web_search_20250305", "name": "web_search", "user_location": location}]
    }
    assert options["gemini"] == {"tools": [{"googleSearch": {}}]}
    assert "gemini" not in asked(web_search_options=search, tools=[READ]).request.provider_options


def test_images_that_a_client_of_openrouter_asks_for_are_asked_of_gemini() -> None:
    options = asked(modalities=["image", "text"]).request.provider_options
    assert options["gemini"] == {"generationConfig": {"responseModalities": ["IMAGE", "TEXT"]}}


def test_a_loss_is_reported_once_for_all_places() -> None:
    messages: list[Json] = [{"role": "user", "content": "Hi", "name": "ann"}] * 3
    assert losses_of(messages=messages) == (
        "messages[].name is not sent to another protocol: only this protocol has it"
    )


@pytest.mark.parametrize("field", ["prefix", "partial"])
def test_a_prefix_is_the_beginning_of_the_reply(field: str) -> None:
    messages: list[Json] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He", field: True}]
    assert asked(messages=messages).request.has_beginning


# --- Requests that can't be read ---


@pytest.mark.parametrize(("body", "message", "param", "code"), [
    ({"model": None}, "you must provide a model parameter", "model", None),
    ({"messages": None}, "Missing required parameter: 'messages'.", "messages", "missing_required_parameter"),
    ({"messages": []}, "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an "
        "empty array instead.", "messages", "empty_array"),
    ({"messages": "Hi"}, "Invalid type for 'messages': expected an array, but got a string instead.",
        "messages", "invalid_type"),
    ({"messages": [{"role": "wizard", "content": "x"}]},
        "Invalid value: 'wizard'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', "
        "'developer'.", "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "Missing required parameter: 'messages[0].content'.",
        "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "tool", "content": "x"}]},
        "Missing required parameter: 'messages[0].tool_call_id'.", "messages[0].tool_call_id",
        "missing_required_parameter"),
    ({"temperature": "hot"}, "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        "temperature", "invalid_type"),
    ({"max_tokens": 0},
        "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        "max_tokens", "integer_below_min_value"),
    ({"n": 0}, "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.", "n",
        "integer_below_min_value"),
    ({"tool_choice": "required"}, "'tool_choice' is only allowed when 'tools' are specified.", "tool_choice",
        None),
    ({"tools": [READ], "tool_choice": {"type": "function", "function": {"name": "write"}}},
        "Invalid value for 'tool_choice': no tool named 'write' was specified.", "tool_choice", None),
    ({"response_format": {"type": "json_schema"}},
        "Missing required parameter: 'response_format.json_schema'.", "response_format.json_schema",
        "missing_required_parameter"),
])  # fmt: skip
def test_an_error_has_the_vendors_words(body: JsonObject, message: str, param: str, code: str | None) -> None:
    assert refusal_of(**body) == (message, param, code)


# --- Content ---


@pytest.mark.parametrize(("part", "block"), [
    ({"type": "text", "text": "Hi"}, TextBlock("Hi")),
    ({"type": "image_url", "image_url": {"url": PNG}}, ImageBlock(PNG)),
    ({"type": "image_url", "image_url": "https://x.test/a.png"}, ImageBlock("https://x.test/a.png")),
    ({"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}, ImageBlock(PNG, detail="low")),
    ({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
        AudioBlock("data:audio/mpeg;base64,UklGRg==", media_type="audio/mpeg")),
    ({"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}},
        DocumentBlock(PDF, media_type="application/pdf", name="a.pdf")),
    ({"type": "file", "file": {"file_data": "https://x.test/a.pdf"}}, DocumentBlock("https://x.test/a.pdf")),
    ({"type": "file", "file": {"file_data": "JVBERi0="}}, DocumentBlock(PDF, media_type="application/pdf")),
    ({"type": "file", "file": {"file_data": PNG}}, ImageBlock(PNG, media_type="image/png")),
    ({"type": "document_url", "document_url": "https://x.test/a", "document_name": "A"},
        DocumentBlock("https://x.test/a", name="A")),
    ({"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
        TextBlock("Hi", ProviderRaw(PROVIDER, {"cache_control": {"type": "ephemeral"}}))),
    ({"type": "file", "file": {"file_id": "file-1"}}, OpaqueBlock("file",
        ProviderRaw(PROVIDER, {"type": "file", "file": {"file_id": "file-1"}}))),
    ({"type": "video_url", "video_url": {"url": "https://x.test/a.mp4"}},
        OpaqueBlock("video_url", ProviderRaw(PROVIDER, {"type": "video_url",
        "video_url": {"url": "https://x.test/a.mp4"}}))),
])  # fmt: skip
def test_a_part_of_a_message_becomes_a_block(part: JsonObject, block: ContentBlock) -> None:
    assert said(part) == block


CLAUDE = "anthropic-claude-v1"
SIGNED: JsonObject = {
    "type": "reasoning.text", "text": "Hm", "signature": "c2ln", "index": 0, "format": CLAUDE
}  # fmt: skip
HIDDEN: JsonObject = {"type": "reasoning.encrypted", "data": "ZGF0YQ", "index": 1, "format": CLAUDE}


@pytest.mark.parametrize(("fields", "blocks"), [
    ({"refusal": "No."}, [TextBlock("No.")]),
    ({"content": [{"type": "refusal", "refusal": "No."}]}, [TextBlock("No.")]),
    ({"content": "Here", "images": [{"type": "image_url", "image_url": {"url": PNG}}]},
        [TextBlock("Here"), ImageBlock(PNG)]),
    ({"reasoning_content": "Hm"}, [ThinkingBlock("Hm", None, ProviderRaw(PROVIDER, {}))]),
    ({"reasoning": "Hm"}, [ThinkingBlock("Hm", None, ProviderRaw(PROVIDER,
        {"reasoning_field": "reasoning"}))]),
    ({"reasoning_content": "Hm", "thinking_blocks": [{"type": "thinking", "thinking": "Hm",
        "signature": "c2ln"}, {"type": "redacted_thinking", "data": "ZGF0YQ"}]},
        [ThinkingBlock("Hm", "c2ln"), RedactedThinkingBlock("ZGF0YQ")]),
    ({"reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "H", "index": 0,
        "format": CLAUDE}, {"type": "reasoning.text", "text": "m", "index": 0, "format": CLAUDE},
        {"type": "reasoning.text", "signature": "c2ln", "index": 0, "format": CLAUDE}]},
        [ThinkingBlock("Hm", "c2ln", ProviderRaw(PROVIDER, {"reasoning_details": [SIGNED]}))]),
    ({"reasoning_content": "Hm", "reasoning_details": [{"type": "reasoning.text", "signature": "c2ln",
        "index": 0, "format": CLAUDE}, HIDDEN]}, [ThinkingBlock("Hm", "c2ln",
        ProviderRaw(PROVIDER, {"reasoning_details": [SIGNED]})), RedactedThinkingBlock("ZGF0YQ",
        ProviderRaw(PROVIDER, {"reasoning_details": [HIDDEN]}))]),
    ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1"}]},
        [ThinkingBlock("", None, ProviderRaw(PROVIDER, {"reasoning_details": [{"type": "reasoning.encrypted",
        "data": "x", "format": "openai-responses-v1"}]}))]),
])  # fmt: skip
def test_a_reply_that_a_client_sends_back_is_read_in_its_most_exact_form(
    fields: JsonObject, blocks: list[ContentBlock]
) -> None:
    assert list(replied(**{"content": None, **fields})) == blocks


def test_anthropics_reasoning_goes_back_to_openrouter_as_it_came() -> None:
    message: JsonObject = {"role": "assistant", "content": "Hi", "reasoning_details": [SIGNED, HIDDEN]}
    request = asked(messages=[{"role": "user", "content": "Hi"}, message]).request
    sent = adapters_body(request, QUIRKS["openrouter"])
    assert sent["messages"][1]["reasoning_details"] == [SIGNED, HIDDEN]


def test_marks_and_later_instructions_stay_messages_of_their_role() -> None:
    mark: JsonObject = {"type": "ephemeral"}
    messages = read_message(
        {"role": "system", "content": [{"type": "text", "text": "Be kind.", "cache_control": mark}]},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "Be short."},
    )
    assert [message.role for message in messages] == [Role.SYSTEM, Role.USER, Role.DEVELOPER]
    assert messages[0].content == (TextBlock("Be kind.", ProviderRaw(PROVIDER, {"cache_control": mark})),)


# --- Calls and results ---


def call(wire_id: str, name: str = "read", arguments: Json = "{}") -> JsonObject:
    return {"id": wire_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_results_in_a_row_are_one_message() -> None:
    messages = read_message(
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
    )
    assert [message.role for message in messages] == [Role.ASSISTANT, Role.TOOL]
    assert messages[1].content == (ToolResultBlock("b", "2"), ToolResultBlock("a", (ImageBlock(PNG),)))


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1})],
)
def test_arguments_are_read_in_every_form_that_clients_send(arguments: Json, read: JsonObject) -> None:
    (block,) = replied(content=None, tool_calls=[call("a", arguments=arguments)])
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.incomplete) == (read, False)


def test_arguments_that_were_cut_off_are_kept_as_text() -> None:
    (block,) = replied(content=None, tool_calls=[call("a", arguments='{"a": ')])
    assert isinstance(block, ToolUseBlock)
    assert (block.raw_arguments, block.incomplete) == ('{"a": ', True)


def test_functions_of_old_clients_are_tools() -> None:
    client = asked(
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None,
            "function_call": {"name": "read", "arguments": "{}"}}, {"role": "function", "name": "read",
            "content": "done"}], functions=[{"name": "read", "parameters": OBJECT}],
        function_call={"name": "read"},
    )  # fmt: skip
    request = client.request
    assert request.tools == (ToolDefinition("read", "", OBJECT, strict=False),)
    assert request.tool_choice == ToolChoice("named", "read")
    assert request.parallel_tool_calls is False
    (used,) = request.messages[1].tool_uses
    assert request.messages[2].content == (ToolResultBlock(used.id, "done"),)


# --- Tools ---


@pytest.mark.parametrize(("parameters", "schema"), [
    (None, {"type": "object", "properties": {}}),
    ({}, {"type": "object"}),
    ({"type": "object", "properties": None}, {"type": "object", "properties": {}}),
    ({"type": "object", "required": ["x"]}, {"type": "object", "properties": {"x": {}}, "required": ["x"]}),
    ({"type": "string"}, {"type": "object", "properties": {}}),
    ({"type": ["object", "null"]}, {"type": "object"}),
    ({"anyOf": [{"type": "object"}]}, {"anyOf": [{"type": "object"}]}),
    ({"type": "object", "required": None}, {"type": "object", "required": []}),
])  # fmt: skip
def test_a_schema_that_canonical_tools_refuse_is_mended(parameters: Json, schema: JsonObject) -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "x", "parameters": parameters}}
    (definition,) = asked(tools=[tool]).request.tools
    assert definition.input_schema == schema


def test_a_tool_is_strict_only_if_the_client_sets_it() -> None:
    strict: JsonObject = {"type": "function", "function": {"name": "a", "parameters": OBJECT, "strict": True}}
    assert [tool.strict for tool in asked(tools=[strict, READ]).request.tools] == [True, False]


def test_a_free_form_tool_keeps_its_grammar_on_both_of_openais_protocols() -> None:
    grammar: JsonObject = {"syntax": "lark", "definition": "start: /a/"}
    tool: JsonObject = {
        "type": "custom",
        "custom": {"name": "sql", "format": {"type": "grammar", "grammar": grammar}},
    }
    client = asked(tools=[tool], tool_choice={"type": "custom", "custom": {"name": "sql"}})
    (definition,) = client.request.tools
    options = {"type": "custom", "format": {"type": "grammar", **grammar}}
    assert definition.provider_options == {PROVIDER: options, "openai": options}
    assert client.options["free_form_tools"] == ["sql"]
    assert adapters_body(client.request)["tools"] == [tool]


@pytest.mark.parametrize(("choice", "read"), [
    ("auto", ToolChoice()),
    ("none", ToolChoice("none")),
    ("required", ToolChoice("required")),
    ("any", ToolChoice("required")),
    ({"type": "function", "function": {"name": "read"}}, ToolChoice("named", "read")),
    ({"function": {"name": "read"}}, ToolChoice("named", "read")),
    ({"type": "auto"}, ToolChoice()),
    ({"type": "any"}, ToolChoice("required")),
    ({"type": "tool", "name": "read"}, ToolChoice("named", "read")),
])  # fmt: skip
def test_a_tool_choice_is_read_in_every_form_that_clients_send(choice: Json, read: ToolChoice) -> None:
    assert asked(tools=[READ], tool_choice=choice).request.tool_choice == read


@pytest.mark.parametrize(("mode", "read"), [("auto", ToolChoice()), ("required", ToolChoice("required"))])
def test_allowed_tools_are_the_only_ones_that_are_offered(mode: str, read: ToolChoice) -> None:
    other: JsonObject = {"type": "function", "function": {"name": "write"}}
    allowed: JsonObject = {"mode": mode, "tools": [{"type": "function", "function": {"name": "write"}}]}
    request = asked(tools=[READ, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).request
    assert ([tool.name for tool in request.tools], request.tool_choice) == (["write"], read)


def test_a_vendors_own_tool_reaches_that_vendor_and_is_a_loss_elsewhere() -> None:
    search: JsonObject = {"type": "openrouter:web_search", "parameters": {}}
    client = asked(tools=[READ, search])
    tools = adapters_body(client.request)["tools"]
    assert isinstance(tools, list)
    assert search in tools
    assert "openrouter:web_search" in losses_of(tools=[search])

"""The reading of requests from clients of Chat Completions."""

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
    ProviderRaw,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from callboard.engine.gateway.chat_replies import WIRE

from ..support.canonical_requests import canonical_requests
from .chat_kit import (
    OBJECT,
    PROVIDER,
    READ,
    adapters_body,
    asked,
    losses_of,
    refusal_of,
)

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
        request_id="",
        model="m",
        messages=messages,
        max_output_tokens=100,
        system_prompt=system,
        stop_sequences=tuple(stop),
        temperature=temperature,
        top_p=top_p,
        frequency_penalty=frequency,
        presence_penalty=presence,
        reasoning_effort=effort,
        parallel_tool_calls=parallel,
        tool_choice=None if mode is None else ToolChoice(mode),
        tools=(ToolDefinition("read", "Reads.", OBJECT, strict=False), ToolDefinition("write", strict=False)),
    )
    assert WIRE.read_request(adapters_body(request), {}).request == request


# --- Settings ---


@pytest.mark.parametrize(("body", "fields"), [
    ({"max_tokens": 5}, {"max_output_tokens": 5, "default_output_limit": False}),
    ({"max_completion_tokens": 5, "max_tokens": 9}, {"max_output_tokens": 5}),
    ({}, {"max_output_tokens": 16_384, "default_output_limit": True}),
    ({"max_tokens": -1}, {"default_output_limit": True}),
    ({"stop": "END"}, {"stop_sequences": ("END",)}),
    ({"stop": ["a", "b"]}, {"stop_sequences": ("a", "b")}),
    ({"seed": 7, "temperature": 0, "top_p": 0.5}, {"seed": 7, "temperature": 0, "top_p": 0.5}),
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


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({"model": None}, "you must provide a model parameter", "model", None),
        ({"messages": None}, "Missing required parameter: 'messages'.", "messages", "missing_required_parameter"),
        (
            {"messages": "Hi"},
            "Invalid type for 'messages': expected an array, but got a string instead.",
            "messages",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "Invalid value: 'wizard'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', "
            "'developer'.",
            "messages[0].role",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user"}]},
            "Missing required parameter: 'messages[0].content'.",
            "messages[0].content",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "Missing required parameter: 'messages[0].tool_call_id'.",
            "messages[0].tool_call_id",
            "missing_required_parameter",
        ),
        (
            {"temperature": "hot"},
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
            "temperature",
            "invalid_type",
        ),
        (
            {"max_tokens": 0},
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
            "max_tokens",
            "integer_below_min_value",
        ),
        (
            {"n": 0},
            "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
            "n",
            "integer_below_min_value",
        ),
        (
            {"tool_choice": "required"},
            "'tool_choice' is only allowed when 'tools' are specified.",
            "tool_choice",
            None,
        ),
        (
            {"tools": [READ], "tool_choice": {"type": "function", "function": {"name": "write"}}},
            "Invalid value for 'tool_choice': no tool named 'write' was specified.",
            "tool_choice",
            None,
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "Missing required parameter: 'response_format.json_schema'.",
            "response_format.json_schema",
            "missing_required_parameter",
        ),
    ],
)
def test_an_error_has_the_vendors_words(body: JsonObject, message: str, param: str, code: str | None) -> None:
    assert refusal_of(**body) == (message, param, code)

"""The reading of requests to OpenAI's Responses API."""

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
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role
from callboard.engine.gateway.responses_requests import joined, read_request
from callboard.engine.gateway.wire import BadRequest

from .responses_cases import APPLY_PATCH, PATCH, REASONING, call, function, output, read, user


def raw(**data: Json) -> ProviderRaw:
    return ProviderRaw("openai", data)


# --- Messages ---


def test_a_text_is_one_message_of_the_user() -> None:
    assert read().request.messages == (Message.user("Hi"),)


@pytest.mark.parametrize(("part", "block"), [
    ({"type": "input_text", "text": "Hi"}, TextBlock("Hi")),
    ({"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}},
        TextBlock("Hi", raw(prompt_cache_breakpoint={"mode": "explicit"}))),
    ({"type": "input_image", "image_url": "https://a.test/b.png", "detail": "high"},
        ImageBlock(url="https://a.test/b.png", detail="high")),
    ({"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        ImageBlock(url="data:image/png;base64,iVBORw0KGgo=")),
    ({"type": "input_image", "file_id": "file_1"}, OpaqueBlock("input_image",
        raw(type="input_image", file_id="file_1"))),
    ({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        DocumentBlock(url="data:application/pdf;base64,JVBERi0=", name="a.pdf")),
    ({"type": "input_file", "filename": "a.csv", "file_data": "YSxi"},
        DocumentBlock(url="data:text/csv;base64,YSxi", name="a.csv")),
    ({"type": "input_file", "file_url": "https://a.test/b.pdf"}, DocumentBlock(url="https://a.test/b.pdf")),
    ({"type": "input_file", "file_id": "file_1"}, OpaqueBlock("input_file",
        raw(type="input_file", file_id="file_1"))),
    ({"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
        AudioBlock(url="data:audio/mpeg;base64,SUQz", media_type="audio/mpeg")),
])  # fmt: skip
def test_each_part_of_a_users_message_becomes_a_block(part: JsonObject, block: ContentBlock) -> None:
    assert read(user(part)).request.messages == (Message(Role.USER, (block,)),)


def test_instructions_are_the_system_text_and_other_roles_stay_where_they_are() -> None:
    asked = read(
        {"role": "developer", "content": "Be brief."},
        user({"type": "input_text", "text": "Hi"}),
        {"role": "system", "content": [{"type": "input_text", "text": "Be kind."}]},
        instructions="Be good.",
    )
    assert asked.request.system_prompt == "Be good."
    assert [(message.role, message.text) for message in asked.request.messages] == [
        (Role.DEVELOPER, "Be brief."),
        (Role.USER, "Hi"),
        (Role.SYSTEM, "Be kind."),
    ]


def test_the_image_of_a_developer_message_is_a_message_of_the_user() -> None:
    image: JsonObject = {"type": "input_image", "image_url": "https://a.test/b.png"}
    messages = read(
        {"role": "developer", "content": [{"type": "input_text", "text": "See."}, image]}
    ).request.messages
    assert [message.role for message in messages] == [Role.DEVELOPER, Role.USER]


def test_the_items_of_one_reply_become_one_message_and_their_outputs_another() -> None:
    messages = read(
        user({"type": "input_text", "text": "Go."}),
        REASONING,
        {"type": "message", "role": "assistant", "id": "msg_1", "phase": "commentary", "content": [
            {"type": "output_text", "text": "One", "annotations": []},
            {"type": "refusal", "refusal": "No."},
        ]},
        call("read", id="fc_1"),
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": PATCH},
        output("done"),
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "ok"}]},
        {"role": "assistant", "content": "Finished."},
        tools=[APPLY_PATCH],
    ).request.messages  # fmt: skip
    known: JsonObject = {"after": "rs_1", "item_id": "msg_1", "phase": "commentary"}
    assert messages[1:] == (
        Message.assistant([ThinkingBlock("", "gAAA", raw(**REASONING)), TextBlock("One", raw(**known)),
            TextBlock("No.", raw(**known, type="refusal")), ToolUseBlock("call_1", "read", {"a": 1},
            provider_raw=raw(id="call_1", item_id="fc_1", after="rs_1")),
            ToolUseBlock("call_2", "apply_patch", {"input": PATCH}, provider_raw=raw(id="call_2", after="rs_1",
            type="custom_tool_call"))]),
        Message(Role.TOOL, (ToolResultBlock("call_1", "done"), ToolResultBlock("call_2", (TextBlock("ok"),)))),
        Message.assistant("Finished."),
    )  # fmt: skip


def test_each_part_of_a_summary_is_a_block_and_the_last_one_has_the_item() -> None:
    parts: list[Json] = [{"type": "summary_text", "text": text} for text in ("One", "Two")]
    [message] = read({**REASONING, "summary": parts}).request.messages
    assert [(block.text, block.signature) for block in message.content if isinstance(block, ThinkingBlock)] == [
        ("One", None),
        ("Two", "gAAA"),
    ]


def test_arguments_that_are_no_object_are_kept_as_text_and_never_run() -> None:
    [message] = read({**call("read"), "arguments": '{"a":'}).request.messages
    [block] = message.tool_uses
    assert (block.input, block.raw_arguments, block.incomplete) == ({}, '{"a":', True)


@pytest.mark.parametrize(("item", "role"), [
    ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, Role.ASSISTANT),
    ({"type": "mcp_list_tools", "id": "m_1", "server_label": "s", "tools": []}, Role.ASSISTANT),
    ({"type": "compaction", "encrypted_content": "gAAA"}, Role.ASSISTANT),
    ({"type": "computer_call_output", "call_id": "c", "output": {}}, Role.USER),
    ({"type": "mcp_approval_response", "approval_request_id": "m_1", "approve": True}, Role.USER),
    ({"type": "item_reference", "id": "msg_1"}, Role.USER),
    ({"id": "msg_1"}, Role.USER),
    ({"type": "shell_call", "call_id": "c", "environment": {"type": "container_reference"}}, Role.ASSISTANT),
])  # fmt: skip
def test_an_item_that_only_openai_can_read_is_kept_unchanged(item: JsonObject, role: Role) -> None:
    [message] = read(item).request.messages
    [block] = message.content
    assert message.role is role
    assert isinstance(block, OpaqueBlock)
    assert block.provider_raw.data == item


def test_reasoning_of_another_provider_comes_back_without_the_gateways_token() -> None:
    summary: list[Json] = [{"type": "summary_text", "text": "Hm."}]
    item: JsonObject = {**REASONING, "summary": summary, "encrypted_content": "callboard:1"}
    [message] = read(item).request.messages
    assert message.content == (ThinkingBlock("Hm."),)


# --- Settings ---


@pytest.mark.parametrize(("fields", "read_as"), [
    ({}, {"default_output_limit": True, "reasoning_effort": None, "output_schema": None}),
    ({"max_output_tokens": 5}, {"max_output_tokens": 5, "default_output_limit": False}),
    ({"temperature": 0.5, "top_p": 1}, {"temperature": 0.5, "top_p": 1}),
    ({"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
    ({"text": {"verbosity": "low", "format": {"type": "text"}}}, {"verbosity": "low", "output_schema": None}),
    ({"text": {"format": {"type": "json_object"}}}, {"output_schema": {"type": "object"}}),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object", "title": "A"}}}},
        {"output_schema": {"type": "object", "title": "A"}}),
    ({"user": "u"}, {"user": "u"}),
    ({"safety_identifier": "s"}, {"user": "s"}),
    ({"tools": [function("a")], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
])  # fmt: skip
def test_each_setting_has_its_field(fields: dict[str, Any], read_as: dict[str, Any]) -> None:
    request = read(**fields).request
    assert {name: getattr(request, name) for name in read_as} == read_as


@pytest.mark.parametrize("fields", [
    {"truncation": "auto"},
    {"service_tier": "flex"},
    {"prompt": {"id": "pmpt_1"}},
    {"top_logprobs": 3},
    {"include": ["message.output_text.logprobs"]},
    {"reasoning": {"context": "all_turns"}},
    {"context_management": [{"type": "compaction"}]},
    {"prompt_cache_retention": "24h"},
    {"something_new": 1},
    {"tool_choice": {"type": "web_search"}},
])  # fmt: skip
def test_what_only_openai_has_a_word_for_is_kept_for_it_and_reported(fields: dict[str, Any]) -> None:
    asked = read(**fields)
    options = asked.request.provider_options["openai"]
    assert isinstance(options, dict)
    assert options.items() >= fields.items()
    assert len(asked.losses) == 1


def test_a_field_of_a_part_that_others_lack_is_reported() -> None:
    asked = read(user({"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}))
    [loss] = asked.losses
    assert loss.message.startswith("'prompt_cache_breakpoint' of a part of a message is not sent")


@pytest.mark.parametrize("fields", [
    {"truncation": "disabled", "service_tier": "auto", "top_logprobs": 0},
    {"metadata": {"a": "b"}, "client_metadata": {"a": "b"}, "stream_options": {"include_obfuscation": False}},
    {"include": ["reasoning.encrypted_content"], "prompt_cache_key": "k"},
    {"store": False, "background": False, "previous_response_id": None},
])  # fmt: skip
def test_what_changes_nothing_is_no_loss(fields: dict[str, Any]) -> None:
    assert read(**fields).losses == ()


def test_what_the_gateway_serves_itself_is_among_the_options() -> None:
    fields: dict[str, Any] = {"store": True, "previous_response_id": "resp_1", "background": True}
    asked = read(**fields)
    assert asked.options == fields
    assert asked.request.provider_options == {}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": "Hi"}, "model", "you must provide a model parameter"),
        (
            {"model": "m"},
            "input",
            "One of 'input', 'previous_response_id', 'prompt' or 'conversation' must be provided.",
        ),
        (
            {"input": 5},
            "input",
            "Invalid type for 'input': expected a string or an array, but got an integer instead.",
        ),
        (
            {"input": ["x"]},
            "input[0]",
            "Invalid type for 'input[0]': expected an object, but got a string instead.",
        ),
        (
            {"input": [{"role": "tool", "content": ""}]},
            "input[0].role",
            "Invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', 'user'.",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content", "Missing required parameter: 'input[0].content'."),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            "Missing required parameter: 'input[0].content[0].text'.",
        ),
        (
            {"input": [{"type": "function_call", "name": "a"}]},
            "input[0].call_id",
            "Missing required parameter: 'input[0].call_id'.",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "Missing required parameter: 'tools[0].name'."),
        (
            {"tool_choice": {"type": "function", "name": "a"}},
            "tool_choice",
            "Tool choice 'a' not found in 'tools' parameter.",
        ),
        (
            {"reasoning": {"effort": "huge"}},
            "reasoning.effort",
            "Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', "
            "'max'.",
        ),
        (
            {"max_output_tokens": 0},
            "max_output_tokens",
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        ),
        (
            {"text": {"format": {"type": "json_schema"}}},
            "text.format.schema",
            "Missing required parameter: 'text.format.schema'.",
        ),
        (
            {"temperature": "hot"},
            "temperature",
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        ),
        (
            {"background": "yes"},
            "background",
            "Invalid type for 'background': expected a boolean, but got a string instead.",
        ),
    ],
)
def test_a_wrong_request_is_refused_in_the_vendors_words(body: JsonObject, param: str, message: str) -> None:
    given = body if "model" in body or param == "model" else {"model": "m", "input": "Hi", **body}
    with pytest.raises(BadRequest) as found:
        read_request(given, {})
    assert (found.value.failure.param, found.value.failure.message) == (param, message)


# --- Stored conversations ---


def test_a_request_that_continues_a_stored_reply_has_the_whole_conversation() -> None:
    said: JsonObject = {"type": "message", "role": "assistant", "id": "msg_1", "content": []}
    body: JsonObject = {"model": "m", "previous_response_id": "resp_1", "input": "And now?"}
    found = joined([user("Hi")], [said], body)
    assert found == {"model": "m", "input": [user("Hi"), said, user({"type": "input_text", "text": "And now?"})]}


def test_a_reference_to_a_stored_item_is_that_item_once() -> None:
    said: JsonObject = {"type": "message", "role": "assistant", "id": "msg_1", "content": []}
    reference: JsonObject = {"type": "item_reference", "id": "msg_1"}
    unknown: JsonObject = {"type": "item_reference", "id": "msg_2"}
    found = joined([], [said], {"model": "m", "input": [reference, {"id": "msg_1"}, unknown]})
    assert found["input"] == [said, unknown]


# --- Hostile bodies ---

RICH: JsonObject = {
    "model": "gpt-5",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "JVBERi0="},
        {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}}]},
        {**REASONING, "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": PATCH},
        {"type": "local_shell_call", "id": "b", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}},
        {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "local_shell_call_output", "id": "b", "output": "a.py"},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [function("one")]},
        {"type": "web_search_call", "id": "ws", "status": "completed"}],
    "tools": [function("two", parameters={"type": "object", "properties": {"a": {}}, "required": ["a"]}),
        {"type": "namespace", "name": "ns", "tools": [function("go")]}, APPLY_PATCH,
        {"type": "shell", "environment": {"type": "local"}}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "two"}]},
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "conversation": {"id": "conv_1"},
    "metadata": {"session_id": "s"},
    "temperature": 1,
    "max_output_tokens": 9,
    "user": "u",
}  # fmt: skip
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 0.5, "", "x", [], {}, [None], [[]], ["x"], {"a": 1}, {"type": "x"}, {"type": ["x"]}),
)


def places(value: Json, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [above] if above else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        found += places(each, (*above, key))
    return found


def test_a_body_with_anything_at_any_place_is_read_or_refused() -> None:
    refused, rich = [], msgspec.json.encode(RICH)
    for place in places(RICH):
        for junk in JUNK:
            body = msgspec.json.decode(rich)
            holder = body
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = junk
            try:
                read_request(body, {})
            except BadRequest as error:
                refused.append(error.failure.param)
    assert len(refused) > 500
    assert None not in refused


def test_many_calls_of_one_id_are_read_in_linear_time() -> None:
    calls = [call("read") for _ in range(3000)]
    [message] = read(*calls).request.messages
    assert len({block.id for block in message.tool_uses}) == 3000

"""The reading of requests to OpenAI's Responses API, and their tools in replies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callboard.bus.streams.events import (
    StreamEvent,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
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
from callboard.bus.values.messages import Message, Role, ToolChoice
from callboard.bus.values.usage import StopReason
from callboard.engine.gateway.failures import BadRequest
from callboard.engine.gateway.responses_requests import joined, read_request, with_tools_of

from .responses_cases import (
    APPLY_PATCH,
    PATCH,
    REASONING,
    call,
    events_of,
    function,
    last_response,
    output,
    output_of,
    read,
    response,
    streamed,
    user,
    whole,
)


def raw(**data: Json) -> ProviderRaw:
    return ProviderRaw("openai", data)


# --- Messages ---


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


@pytest.mark.parametrize(("body", "param", "message"), [
    ({"input": "Hi"}, "model", "you must provide a model parameter"),
    ({"model": "m"}, "input",
        "One of 'input', 'previous_response_id', 'prompt' or 'conversation' must be provided."),
    ({"input": 5}, "input",
        "Invalid type for 'input': expected a string or an array, but got an integer instead."),
    ({"input": ["x"]}, "input[0]",
        "Invalid type for 'input[0]': expected an object, but got a string instead."),
    ({"input": [{"role": "tool", "content": ""}]}, "input[0].role",
        "Invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', 'user'."),
    ({"input": [{"role": "user"}]}, "input[0].content", "Missing required parameter: 'input[0].content'."),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text",
        "Missing required parameter: 'input[0].content[0].text'."),
    ({"input": [{"type": "function_call", "name": "a"}]}, "input[0].call_id",
        "Missing required parameter: 'input[0].call_id'."),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "Missing required parameter: 'tools[0].name'."),
    ({"tool_choice": {"type": "function", "name": "a"}}, "tool_choice",
        "Tool choice 'a' not found in 'tools' parameter."),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort",
        "Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', "
        "'max'."),
    ({"max_output_tokens": 0}, "max_output_tokens",
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead."),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema",
        "Missing required parameter: 'text.format.schema'."),
    ({"temperature": "hot"}, "temperature",
        "Invalid type for 'temperature': expected a decimal, but got a string instead."),
    ({"background": "yes"}, "background",
        "Invalid type for 'background': expected a boolean, but got a string instead."),
])  # fmt: skip
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


@pytest.mark.parametrize(("tool", "name", "wire"), [
    (function("read_file"), "read_file", None),
    (function("fs.read"), "fs_read_4074bc02", {"kind": "function", "name": "fs.read"}),
    (function("1st"), "tool_1st_e01ddf65", {"kind": "function", "name": "1st"}),
    (APPLY_PATCH, "apply_patch", {"kind": "custom", "name": "apply_patch"}),
    ({"type": "namespace", "name": "mcp__docs", "tools": [function("find")]}, "mcp__docs__find",
        {"kind": "function", "name": "find", "namespace": "mcp__docs"}),
    ({"type": "local_shell"}, "local_shell", {"kind": "local_shell", "name": "local_shell"}),
    ({"type": "shell"}, "shell", {"kind": "shell", "name": "shell"}),
    ({"type": "apply_patch"}, "apply_patch", {"kind": "apply_patch", "name": "apply_patch"}),
    ({"type": "tool_search", "execution": "client", "description": "Find.", "parameters": {"type": "object"}},
        "tool_search", {"kind": "tool_search", "name": "tool_search"}),
])  # fmt: skip
def test_each_tool_that_the_client_runs_is_a_definition(tool: JsonObject, name: str, wire: Json) -> None:
    asked = read(tools=[tool])
    assert [each.name for each in asked.request.tools] == [name]
    assert asked.options.get("tools") == (None if wire is None else {name: wire})
    assert asked.losses == ()


@pytest.mark.parametrize("tool", [
    {"type": "web_search"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "tool_search"},
    {"type": "shell", "environment": {"type": "container_auto"}},
])  # fmt: skip
def test_a_tool_that_runs_at_openai_is_left_to_openai_and_reported(tool: JsonObject) -> None:
    asked = read(tools=[tool, function("read")])
    assert [each.name for each in asked.request.tools] == ["read"]
    assert asked.request.provider_options["openai"] == {"tools": [tool]}
    assert [loss.message for loss in asked.losses] == [
        f"the tool {tool['type']!r} is not sent to another protocol: it runs at OpenAI"
    ]


def test_the_first_tool_of_a_namespace_tells_what_all_have_in_common() -> None:
    tools: list[Json] = [function("one", description="Do one."), function("two", description="Do two.")]
    space: JsonObject = {"type": "namespace", "name": "ns", "description": "About numbers.", "tools": tools}
    assert [tool.description for tool in read(tools=[space]).request.tools] == [
        "Do one.\n\nAll tools of ns: About numbers.",
        "Do two.",
    ]


@pytest.mark.parametrize(("tools", "loss"), [
    ([function("a", defer_loading=True)], None),
    ([function("a", allowed_callers=["direct"])], "'allowed_callers' of the tool 'a'"),
    ([function("a"), function("a")], None),
    ([function("a"), function("a", parameters={"type": "object", "title": "A"})], "the second tool named 'a'"),
])  # fmt: skip
def test_what_is_lost_of_a_tool_is_reported(tools: list[Json], loss: str | None) -> None:
    losses = [each.message.partition(" is not sent")[0] for each in read(tools=tools).losses]
    assert losses == ([] if loss is None else [loss])


def test_tools_of_equal_names_get_names_of_their_own() -> None:
    tools: list[Json] = [
        function("a__b"), {"type": "namespace", "name": "a", "tools": [function("b")]},
        {"type": "custom", "name": "a__b"}, function("x" * 80), function("x" * 81),
    ]  # fmt: skip
    names = [tool.name for tool in read(tools=tools).request.tools]
    assert len(set(names)) == 5
    assert all(len(name) <= 64 for name in names)


def test_other_providers_read_a_custom_tools_grammar_in_words() -> None:
    [tool] = read(tools=[APPLY_PATCH]).request.tools
    told = tool.input_schema["properties"]["input"]["description"]
    assert told.endswith("It must match this lark grammar:\nstart: patch")


def test_tools_among_the_items_are_tools_of_the_request() -> None:
    asked = read(
        {"type": "additional_tools", "role": "developer", "tools": [function("one")]},
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "status": "completed", "tools": [
            {"type": "namespace", "name": "ns", "tools": [function("two")]}, function("one"),
        ]},
        call("two", "d", namespace="ns"),
        output("2", "d"),
    )  # fmt: skip
    assert [tool.name for tool in asked.request.tools] == ["one", "ns__two"]
    search, found, use, _ = asked.request.messages
    assert search.tool_uses[0].input == {"query": "x"}
    assert found.content == (ToolResultBlock("c", "These tools can be called now: ns__two, one"),)
    assert use.tool_uses[0].name == "ns__two"


def test_tools_that_a_stored_conversation_brought_are_tools_of_the_next_request() -> None:
    past: list[Json] = [{"type": "additional_tools", "role": "developer", "tools": [function("one")]}, call("one")]
    body: JsonObject = {"model": "gpt-5", "input": "Hi", "tools": [function("two")]}
    assert with_tools_of(past, body)["tools"] == [function("two"), function("one")]
    assert with_tools_of(past[1:], body) is body


def test_the_calls_of_shells_and_patches_are_calls_with_results() -> None:
    messages = read(
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "a", "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}, "user": None}},
        {"type": "shell_call", "call_id": "b", "action": {"commands": ["pwd"], "timeout_ms": 5}},
        {"type": "apply_patch_call", "call_id": "c", "status": "completed",
            "operation": {"type": "delete_file", "path": "a.py"}},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "a.py"},
        {"type": "shell_call_output", "call_id": "b", "output": [
            {"stdout": "/", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no such file"},
    ).request.messages  # fmt: skip
    assert [(block.id, block.name, block.input) for block in messages[0].tool_uses] == [
        ("a", "local_shell", {"command": ["ls"], "env": {}}),
        ("b", "shell", {"commands": ["pwd"], "timeout_ms": 5}),
        ("c", "apply_patch", {"type": "delete_file", "path": "a.py"}),
    ]
    results = [block for block in messages[1].content if isinstance(block, ToolResultBlock)]
    assert [(block.tool_use_id, block.is_error) for block in results] == [("a", False), ("b", False), ("c", True)]
    assert '"exit_code":0' in results[1].text


@pytest.mark.parametrize(("choice", "read_as", "names"), [
    (None, None, ["read", "apply_patch", "ns__go"]),
    ("auto", ToolChoice("auto"), ["read", "apply_patch", "ns__go"]),
    ("none", ToolChoice("none"), ["read", "apply_patch", "ns__go"]),
    ("required", ToolChoice("required"), ["read", "apply_patch", "ns__go"]),
    ({"type": "function", "name": "read"}, ToolChoice("named", "read"), ["read", "apply_patch", "ns__go"]),
    ({"type": "function", "name": "go"}, ToolChoice("named", "ns__go"), ["read", "apply_patch", "ns__go"]),
    ({"type": "custom", "name": "apply_patch"}, ToolChoice("named", "apply_patch"),
        ["read", "apply_patch", "ns__go"]),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}]},
        ToolChoice("required"), ["read"]),
    ({"type": "allowed_tools", "mode": "auto", "tools": []}, ToolChoice("none"), []),
    ({"type": "web_search"}, None, ["read", "apply_patch", "ns__go"]),
])  # fmt: skip
def test_each_choice_of_tools_is_read(choice: Json, read_as: ToolChoice | None, names: list[str]) -> None:
    tools: list[Json] = [
        function("read"),
        APPLY_PATCH,
        {"type": "namespace", "name": "ns", "tools": [function("go")]},
    ]
    request = read(tools=tools, tool_choice=choice).request
    assert request.tool_choice == read_as
    assert [tool.name for tool in request.tools] == names


# --- Custom tools ---


def custom_call(fragments: list[str], final: JsonObject, *, incomplete: bool = False) -> list[StreamEvent]:
    return [
        ToolUseStart("tu_1", "apply_patch"),
        *(ToolUseInputDelta("tu_1", fragment) for fragment in fragments),
        ToolUseEnd("tu_1", final, incomplete),
    ]


def deltas_of(data: bytes) -> list[Json]:
    return [
        event["delta"] for event in events_of(data) if event["type"] == "response.custom_tool_call_input.delta"
    ]


ESCAPED = '{"input": "' + "".join(f"\\u{unit:04x}" for unit in (0xD83D, 0xDE00, 0x22, 0x5C, 0x0A)) + ' end"}'
AS_JSON = msgspec.json.encode({"input": PATCH}).decode()


@pytest.mark.parametrize(("arguments", "text"), [(AS_JSON, PATCH), (ESCAPED, '😀"\\\n end')])
def test_the_text_of_a_custom_tool_grows_with_its_json_wherever_that_is_cut(arguments: str, text: str) -> None:
    asked = read(tools=[APPLY_PATCH])
    call = ToolUseBlock("tu_1", "apply_patch", {"input": text})
    for size in (1, 2, 3, 7, len(arguments)):
        fragments = [arguments[start : start + size] for start in range(0, len(arguments), size)]
        data = streamed(response(call), custom_call(fragments, {"input": text}), asked)
        assert "".join(map(str, deltas_of(data))) == text
        [item] = output_of(last_response(data))
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", text)
    assert len(deltas_of(streamed(response(call), custom_call(list(arguments), {"input": text}), asked))) > 5


@pytest.mark.parametrize(("arguments", "final", "text"), [
    ('{"patch": "x"}', {"patch": "x"}, "x"),
    ('{"a": 1, "b": 2}', {"a": 1, "b": 2}, '{"a":1,"b":2}'),
    ("{}", {}, ""),
    ("", {"input": "x"}, "x"),
    ('{"input": "x", "more": 1}', {"input": "x", "more": 1}, "x"),
    ('{"input": 5}', {"input": 5}, '{"input":5}'),
    ('{"input": "a\nb"}', {"input": "a\nb"}, "a\nb"),
])  # fmt: skip
def test_a_model_that_gets_the_form_of_a_custom_tool_wrong_is_still_understood(
    arguments: str, final: JsonObject, text: str
) -> None:
    asked = read(tools=[APPLY_PATCH])
    reply = response(ToolUseBlock("tu_1", "apply_patch", final))
    data = streamed(reply, custom_call(list(arguments), final), asked)
    for body in (whole(reply, asked), last_response(data)):
        [item] = output_of(body)
        assert (item["type"], item["input"]) == ("custom_tool_call", text)
    assert "".join(map(str, deltas_of(data))) == text


def test_a_custom_tool_that_is_cut_off_has_the_text_so_far() -> None:
    asked = read(tools=[APPLY_PATCH])
    reply = response(ToolUseBlock("tu_1", "apply_patch", {}, incomplete=True), stop_reason=StopReason.MAX_TOKENS)
    [item] = output_of(
        last_response(streamed(reply, custom_call(['{"input": "*** Be'], {}, incomplete=True), asked))
    )
    assert (item["input"], item["status"]) == ("*** Be", "incomplete")


@pytest.mark.parametrize(("tool", "arguments", "fields"), [
    ({"type": "local_shell"}, {"command": ["ls"], "timeout_ms": 5},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {},
        "timeout_ms": 5}}),
    ({"type": "local_shell"}, {"command": "ls -l"}, {"type": "local_shell_call",
        "action": {"type": "exec", "command": ["bash", "-lc", "ls -l"], "env": {}}}),
    ({"type": "shell"}, {"commands": ["pwd"]}, {"type": "shell_call",
        "action": {"commands": ["pwd"], "timeout_ms": None, "max_output_length": None}}),
    ({"type": "apply_patch"}, {"type": "update_file", "path": "a", "diff": "+b"},
        {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a", "diff": "+b"}}),
    ({"type": "tool_search", "execution": "client"}, {"query": "x"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}}),
    ({"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "go.now"}]}, {"a": 1},
        {"type": "function_call", "namespace": "ns", "name": "go.now", "arguments": '{"a":1}'}),
])  # fmt: skip
def test_a_call_comes_back_in_the_form_of_the_clients_tool(
    tool: JsonObject, arguments: JsonObject, fields: JsonObject
) -> None:
    asked = read(tools=[tool])
    reply = response(ToolUseBlock("tu_1", asked.request.tools[0].name, arguments), stop_reason=StopReason.TOOL_USE)
    for body in (whole(reply, asked), last_response(streamed(reply, asked=asked))):
        [item] = output_of(body)
        assert item.items() >= {"call_id": "tu_1", "status": "completed"}.items()
        assert {name: item[name] for name in fields} == fields

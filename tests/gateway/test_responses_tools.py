"""The reading of the tools in requests to OpenAI's Responses API."""

from __future__ import annotations

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
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import ToolChoice
from callboard.bus.values.usage import StopReason
from callboard.engine.gateway.responses_requests import with_tools_of

from .responses_cases import (
    APPLY_PATCH,
    PATCH,
    call,
    events_of,
    function,
    last_response,
    output,
    output_of,
    read,
    response,
    streamed,
    whole,
)


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
    told = tool.input_schema["properties"]["input"]["description"]  # type: ignore[index,call-overload]
    assert told.endswith("It must match this lark grammar:\nstart: patch")  # type: ignore[union-attr]


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

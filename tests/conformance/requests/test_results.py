"""Calls and their results in the words of each wire."""

from __future__ import annotations

import pytest

from callboard.adapters.requests.history import FAILED_SILENTLY, NO_RESULT, NOT_EXECUTED
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ImageBlock, TextBlock, ToolUseBlock
from callboard.bus.values.messages import Message

from ...support.wires import Wire
from .cases import (
    CHAT,
    CLAUDE,
    GEMINI,
    LOST,
    OLDER_GEMINI,
    OLLAMA,
    PNG,
    PNG_64,
    RESPONSES,
    Case,
    Written,
    ours,
    row,
    table,
)

AND: JsonObject = {"type": "text", "text": "And?"}
SENT: JsonObject = {"path": "Köln"}


def function(call_id: str, name: str, arguments: str) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def both(wire: Wire) -> tuple[Message, ...]:
    """Two calls, one with an id of the provider's own; results in another order, one an error; then the user."""
    own = ToolUseBlock("tu_2", "list", {}, provider_raw=ours(wire, id="own"))
    results = (Message.tool_result("tu_2", "two"), Message.tool_result("tu_1", "gone", is_error=True))
    calls = (TextBlock("So"), ToolUseBlock("tu_1", "read_file", {"path": "Köln"}), own)
    return Message.user("Go"), Message.assistant(calls), *results, Message.user("And?")


@table(
    row(CLAUDE, "in the user's message", {
        "messages.1.content": [
            {"type": "text", "text": "So"}, {"type": "tool_use", "id": "tu_1", "name": "read_file", "input": SENT},
            {"type": "tool_use", "id": "own", "name": "list", "input": {}}],
        "messages.2": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "tu_1", "content": "gone", "is_error": True},
            {"type": "tool_result", "tool_use_id": "own", "content": "two"}, AND]},
        "messages.3": None}),
    row(RESPONSES, "an item each", {
        "input.2": {
            "type": "function_call", "call_id": "tu_1", "name": "read_file", "arguments": '{"path":"Köln"}'},
        "input.3": {"type": "function_call", "call_id": "own", "name": "list", "arguments": "{}"},
        "input.4": {"type": "function_call_output", "call_id": "tu_1", "output": "Error: gone"},
        "input.5": {"type": "function_call_output", "call_id": "own", "output": "two"},
        "input.6": {"role": "user", "content": "And?"}}),
    row(CHAT, "a message each", {
        "messages.1": {"role": "assistant", "content": "So", "tool_calls": [
            function("tu_1", "read_file", '{"path":"Köln"}'), function("own", "list", "{}")]},
        "messages.2": {"role": "tool", "tool_call_id": "tu_1", "content": "Error: gone"},
        "messages.3": {"role": "tool", "tool_call_id": "own", "content": "two"},
        "messages.4": {"role": "user", "content": "And?"}}),
    row(GEMINI, "a content of their own", {
        "contents.1.parts": [
            {"text": "So"}, {"functionCall": {"id": "tu_1", "name": "read_file", "args": SENT}},
            {"functionCall": {"id": "own", "name": "list", "args": {}}}],
        "contents.2": {"role": "user", "parts": [
            {"functionResponse": {"id": "tu_1", "name": "read_file", "response": {"error": "gone"}}},
            {"functionResponse": {"id": "own", "name": "list", "response": {"output": "two"}}}]},
        "contents.3": {"role": "user", "parts": [{"text": "And?"}]}}, model=OLDER_GEMINI),
    row(OLLAMA, "a message each", {
        "messages.1": {"role": "assistant", "content": "So", "tool_calls": [
            {"id": "tu_1", "function": {"name": "read_file", "arguments": SENT}},
            {"id": "own", "function": {"name": "list", "arguments": {}}}]},
        "messages.2": {"role": "tool", "content": "Error: gone", "tool_name": "read_file", "tool_call_id": "tu_1"},
        "messages.3": {"role": "tool", "content": "two", "tool_name": "list", "tool_call_id": "own"},
        "messages.4": {"role": "user", "content": "And?"}}),
)  # fmt: skip
def test_results_follow_their_calls_in_the_order_of_these(case: Case) -> None:
    """With the calls' ids, the provider's own where it gave one; what the user says comes after them."""
    case.check(messages=both(case.wire))


RESULT = {
    "anthropic": "messages.2.content.0",
    "openai": "input.2",
    "openai_compatible": "messages.2",
    "gemini": "contents.2.parts.0.functionResponse.response",
    "ollama": "messages.2",
}
"""The path of the only result on each wire."""

CALLED = (Message.user("Go"), Message.assistant([ToolUseBlock("tu_1", "look", {})]))
CUT = (CALLED[0], Message.assistant([ToolUseBlock("tu_1", "look", {}, raw_arguments='{"a": ', incomplete=True)]))
IMAGE = ImageBlock(data=PNG)
BAD = TextBlock("bad")
CLAUDES: JsonObject = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_64}}
FOLLOWS = "The result is an image; it follows."
RESULTS: list[tuple[Wire, str, str | tuple[TextBlock | ImageBlock, ...], bool, JsonObject]] = [
    *[(CLAUDE, *rest) for rest in [
        ("empty", "", False, {"content": "(no output)"}),
        ("blank", " \n", False, {"content": "(no output)"}),
        ("empty text", (TextBlock(""),), False, {"content": "(no output)"}),
        ("text and image", (TextBlock("one"), IMAGE, TextBlock(" ")), False,
         {"content": [{"type": "text", "text": "one"}, CLAUDES]}),
        ("error", "gone", True, {"content": "gone", "is_error": True}),
        ("silent error", "", True, {"content": FAILED_SILENTLY, "is_error": True}),
        ("error of an image", (IMAGE,), True, {"content": FAILED_SILENTLY, "is_error": True}),
        ("error and image", (BAD, IMAGE), True, {"content": [{"type": "text", "text": "bad"}], "is_error": True}),
    ]],
    *[(RESPONSES, *rest) for rest in [
        ("error", "12°", True, {"type": "function_call_output", "call_id": "tu_1", "output": "Error: 12°"}),
        ("error and image", (BAD, IMAGE), True, {"output": [
            {"type": "input_text", "text": "Error: "}, {"type": "input_text", "text": "bad"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG_64}", "detail": "auto"}]}),
    ]],
    *[(wire, "image", (IMAGE,), False, {"content": FOLLOWS}) for wire in (CHAT, OLLAMA)],
    *[(GEMINI, *rest) for rest in [
        ("silent error", "", True, {"error": FAILED_SILENTLY, "output": None}),
    ]],
]  # fmt: skip


@pytest.mark.parametrize(("wire", "content", "is_error", "expected"), [(row[0], *row[2:]) for row in RESULTS],
                         ids=[f"{row[0].name}-{row[1]}" for row in RESULTS])  # fmt: skip
def test_a_results_content_is_what_the_wire_accepts(
    wire: Wire, content: str | tuple[TextBlock | ImageBlock, ...], is_error: bool, expected: JsonObject
) -> None:
    """Nothing is sent for no content, but a failure must say something."""
    result = Written(wire, *CALLED, Message.tool_result("tu_1", content, is_error=is_error)).at(RESULT[wire.name])
    assert isinstance(result, dict)
    assert {key: result.get(key) for key in expected} == expected


@table(
    row(CLAUDE, "cut off", {"messages.2.content": [
        {"type": "tool_result", "tool_use_id": "tu_1", "content": NOT_EXECUTED, "is_error": True}, AND]},
        [LOST], messages=(*CUT, Message.user("And?"))),
    row(GEMINI, "cut off", {RESULT["gemini"]: {"error": NOT_EXECUTED}}, [LOST], messages=CUT),
    row(GEMINI, "unanswered", {RESULT["gemini"]: {"error": NO_RESULT}}, messages=CALLED),
)  # fmt: skip
def test_a_call_without_a_result_is_answered(case: Case) -> None:
    """A cancelled call would make every later request fail."""
    case.check()

"""Whole replies: the same content as streamed ones, because both are read in one way."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from adapters.providers.openai.quirks import COMPATIBLE, QUIRKS
from bus.errors import AdapterError, ContextOverflowError, QuotaExceededError, ServerError, StreamError
from bus.values.content import OpaqueBlock, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.messages import ToolDefinition
from bus.values.usage import StopReason

from ...support.json_values import json_objects
from ...support.readings import without_raw
from .wire_events import (
    CREATED,
    added,
    call,
    done,
    ending,
    message,
    read,
    read_whole,
    read_whole_bytes,
    reasoning,
    request,
    response,
)

SEARCH: JsonObject = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
OUTPUT = [
    reasoning("Why", "How"),
    SEARCH,
    reasoning(number=2),
    message("One", "Two"),
    message(item_id="msg_2", content=[{"type": "refusal", "refusal": "No."}]),
    call("f", '{"a": [1, {"b": null}]}'),
    call("g", "", 2),
]


def test_every_kind_of_item_in_order() -> None:
    """Blocks stand in output order, each with what it needs to go back."""
    reading = read_whole(*OUTPUT)
    kinds = [
        ThinkingBlock,
        ThinkingBlock,
        OpaqueBlock,
        ThinkingBlock,
        TextBlock,
        TextBlock,
        TextBlock,
        ToolUseBlock,
        ToolUseBlock,
    ]
    assert [type(block) for block in reading.content] == kinds
    assert reading.thinking == "WhyHow"
    assert [block.input for block in reading.calls] == [{"a": [1, {"b": None}]}, {}]
    assert reading.complete.stop_reason is StopReason.TOOL_USE


def test_streamed_and_whole_are_the_same() -> None:
    """A stream of finished items gives the events of the whole reply."""
    streamed = [event for index, item in enumerate(OUTPUT) for event in (added(index, item), done(index, item))]
    whole, stream = read_whole(*OUTPUT), read(CREATED, *streamed, ending())
    assert without_raw(stream.events) == without_raw(whole.events)


def test_raw_reasoning_is_shown_where_there_is_no_summary() -> None:
    """A summary goes before the raw reasoning."""
    content = [{"type": "reasoning_text", "text": "raw"}]
    assert read_whole(reasoning(content=content)).thinking == "raw"
    assert read_whole(reasoning("summary", content=content)).thinking == "summary"


@pytest.mark.parametrize(
    ("fields", "reason", "raw"),
    [
        ({}, StopReason.END_TURN, "completed"),
        ({"status": None}, StopReason.PROVIDER_SPECIFIC, None),
        ({"status": "complete"}, StopReason.PROVIDER_SPECIFIC, "complete"),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            StopReason.CONTENT_FILTER,
            "content_filter",
        ),
        ({"status": "incomplete"}, StopReason.PROVIDER_SPECIFIC, "incomplete"),
    ],
)
def test_stop_reasons(fields: JsonObject, reason: StopReason, raw: str | None) -> None:
    """Nothing is called a normal end that the provider doesn't call one."""
    complete = read_whole(message("Hi"), **fields).complete
    assert (complete.stop_reason, complete.raw_stop_reason) == (reason, raw)


def test_namespace_of_a_call_is_kept() -> None:
    """A tool that was found by search goes back with the namespace it came from."""
    (block,) = read_whole(call("f", "{}", namespace="crm")).calls
    assert block.provider_raw is not None
    assert block.provider_raw.data == {"id": "call_1", "namespace": "crm"}


def test_bogus_parallel_call_is_an_unknown_tool() -> None:
    """A model sometimes calls the machinery itself; the call is passed on under its name."""
    (block,) = read_whole(call("multi_tool_use.parallel", '{"tool_uses":[]}')).calls
    assert block.name == "multi_tool_use.parallel"


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a":1}'])
def test_arguments_as_an_object(arguments: Json) -> None:
    """Some servers send arguments as an object in place of its text."""
    (block,) = read_whole({**call("f", ""), "arguments": arguments}).calls
    assert block.input == {"a": 1}


OPTIONAL = ToolDefinition(
    "f",
    input_schema={
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}, "c": {"type": "null"}},
        "required": ["a"],
    },
)


def test_nulls_of_strict_mode_are_taken_out() -> None:
    """A null for an optional parameter means that it was left out; one that the schema allows stays."""
    asked = request(tools=(OPTIONAL,))
    (block,) = read_whole(call("f", '{"a":"x","b":null,"c":null}'), asked=asked).calls
    assert block.input == {"a": "x", "b": None, "c": None}
    loose = msgspec.structs.replace(
        OPTIONAL,
        input_schema={"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
    )
    asked = request(tools=(loose,))
    (block,) = read_whole(call("f", '{"a":"x","b":null}'), asked=asked).calls
    assert block.input == {"a": "x"}
    (block,) = read_whole(call("f", '{"a":"x","b":null}'), asked=asked, quirks=COMPATIBLE).calls
    assert block.input == {"a": "x", "b": None}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"{}", StreamError),
        (b'{"choices": [{"message": {"content": "hi"}}], "object": "chat.completion"}', StreamError),
        (b'{"error": {"code": 502, "message": "upstream"}}', ServerError),
        (b'{"error": {"code": "context_length_exceeded"}}', ContextOverflowError),
        (msgspec.json.encode(response("failed", error={"code": "insufficient_quota"})), QuotaExceededError),
        (msgspec.json.encode(response("queued")), StreamError),
    ],
)
def test_status_200_that_is_no_reply(reply: bytes, expected: type[AdapterError]) -> None:
    """An error, another protocol and a response that isn't there yet are errors."""
    assert type(read_whole_bytes(reply).error) is expected


def test_waiting_response_is_not_asked_for_again() -> None:
    """A retry would start a second background response."""
    error = read_whole_bytes(msgspec.json.encode(response("queued"))).error
    assert error is not None
    assert not error.retryable


def test_completed_at_the_limit() -> None:
    """llama.cpp says ``completed`` there; its count of tokens tells."""
    usage: JsonObject = {"input_tokens": 1, "output_tokens": 9}
    reading = read_whole(
        message("Hi"), usage=usage, quirks=QUIRKS["llama.cpp"], asked=request(max_output_tokens=9)
    )
    assert reading.complete.stop_reason is StopReason.MAX_TOKENS


@settings(max_examples=40, deadline=None)
@given(json_objects(4))
def test_any_arguments_come_through(arguments: dict[str, object]) -> None:
    """A call's arguments are what the model sent."""
    (block,) = read_whole(call("f", msgspec.json.encode(arguments).decode())).calls
    assert block.input == msgspec.json.decode(msgspec.json.encode(arguments))

"""Round trips of the Responses wire. The gateway reads the adapter's requests, and the adapter the gateway's
replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam, ToolParam

from callboard.adapters import CanonicalRequest, CanonicalResponse
from callboard.adapters.replies.whole import whole_events
from callboard.bus.errors import AdapterError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import TextBlock
from callboard.bus.values.messages import Message, Role
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.failures import BadRequest
from callboard.engine.gateway.responses_requests import read_request
from callboard.engine.gateway.wire import ClientRequest

from ..support.canonical_requests import canonical_requests
from ..support.conversations import bodies
from ..support.recordings import FOLDER, needs_recordings, read_cases
from ..support.sdk_values import values
from .responses_cases import (
    build,
    plain,
    read,
    read_body,
    read_stream,
    streamed,
    whole,
)

# --- Requests ---


def items_of(body: JsonObject) -> list[JsonObject]:
    """The items of a body in one form.

    The adapter joins adjacent messages of one role, makes up ids for replies, and leaves out empty messages.
    """
    given = body["input"]
    found: list[JsonObject] = []
    for item in given if isinstance(given, list) else [{"role": "user", "content": given}]:
        assert isinstance(item, dict)
        kept: JsonObject = {name: value for name, value in item.items() if value is not None}
        if item.get("type") == "function_call":
            arguments = item["arguments"]
            kept["arguments"] = msgspec.json.decode(arguments) if isinstance(arguments, str) and arguments else {}
        if "_00000" in str(item.get("id")):
            kept.pop("id")
        if "role" in item and "content" in item:
            kept["type"] = "message"
            if item["role"] == "assistant":
                kept.pop("status", None)
                kept.pop("id", None)
            parts = _parts(item)
            if not parts:
                continue
            kept["content"] = parts
            if item["role"] != "assistant" and found and found[-1].get("role") == item["role"]:
                former = found[-1].get("content")
                if isinstance(former, list):
                    former += parts
                    continue
        found.append(kept)
    return found


def _parts(item: Mapping[str, Json]) -> list[Json]:
    content, reply = item["content"], item["role"] == "assistant"
    if isinstance(content, str):
        content = [{"type": "output_text" if reply else "input_text", "text": content}]
    assert isinstance(content, list)
    parts = [part for part in content if isinstance(part, dict) and part.get("text") != ""]
    return [{"annotations": [], **part} if part.get("type") == "output_text" else part for part in parts]


def read_again(body: JsonObject) -> CanonicalRequest:
    return read_request(body, {}).request


@settings(max_examples=60)
@given(canonical_requests(["openai:gpt-5", "openai:gpt-4o"]))
def test_what_is_read_of_what_the_adapter_writes_is_written_the_same_again(request: CanonicalRequest) -> None:
    try:
        body = build(request)
    except AdapterError:
        return  # this provider does not support the request
    again = build(read_again(body))
    assert items_of(again) == items_of(body)
    gateways = ("input", "store", "background", "prompt_cache_key")
    assert {name: value for name, value in again.items() if name not in gateways} == {
        name: value for name, value in body.items() if name not in gateways
    }


def test_the_text_that_json_mode_needs_is_written_once() -> None:
    """The adapter adds a message that mentions JSON. When this request is read and written again, no second one is
    added.
    """
    hello = Message(Role.DEVELOPER, (TextBlock("Hi"),))
    request = CanonicalRequest(
        request_id="", model="openai:gpt-5", messages=(hello,), max_output_tokens=16,
        output_schema={"type": "object"},
    )  # fmt: skip
    body = build(request)
    assert items_of(build(read_again(body))) == items_of(body)
    assert str(body).count("JSON object") == 1


_ITEMS: st.SearchStrategy[list[Json]] = st.lists(values(ResponseInputItemParam), min_size=1, max_size=3)
_TOOLS: st.SearchStrategy[list[Json]] = st.lists(values(ToolParam), max_size=2)


def read_or_refused(*items: Json, tools: Json) -> ClientRequest | str:
    try:
        return read(*items, tools=tools)
    except BadRequest as error:
        return error.failure.message


@settings(max_examples=150)
@given(_ITEMS, _TOOLS)
def test_whatever_the_sdk_can_send_is_read_and_written_the_same_again(
    items: list[Json], tools: list[Json]
) -> None:
    asked = read_or_refused(*items, tools=tools)
    if isinstance(asked, str):
        # The SDK's types do not require all fields, and the data of a file can be any text.
        assert asked.startswith(("Missing required", "Invalid 'input"))
        return
    try:
        body = build(asked.request)
    except AdapterError:
        return
    again = build(read_again(body))
    assert items_of(again) == items_of(body)
    if not any(isinstance(item, dict) and item.get("tools") for item in items):  # these are then tools of both
        assert again.get("tools") == body.get("tools")


# --- Replies ---


def counts(usage: TokenUsage) -> tuple[int, ...]:
    return (
        usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens,
        usage.reasoning_tokens or 0,
    )  # fmt: skip


@settings(max_examples=150)
@given(bodies("openai"))
def test_a_reply_of_openai_is_written_as_it_was_read(body: JsonObject) -> None:
    try:
        reply = read_body(body)
    except AdapterError:
        return
    assert plain(read_body(whole(reply))) == plain(reply)


# --- Recorded traffic ---

DIFFERENCES: dict[str, str] = {
    "store": "the gateway keeps the past of a conversation itself",
    "previous_response_id": "the application joins the stored past",
    "conversation": "the application joins the stored past",
    "background": "the application runs replies in the background",
    "stream": "the adapter leaves out false",
    "max_output_tokens": "without a limit of the client's there is a default",
    "include": "the adapter asks for encrypted reasoning, because it stores nothing",
    "instructions": "system messages are part of the system text, and an empty text is left out",
    "tool_choice": "without tools of the client's the choice has no meaning",
    "text": "plain text is the default",
}
"""The fields of recorded bodies that may differ after reading and writing, with the reasons."""

_TOOLS_OF_ITEMS = ("additional_tools", "tool_search_call", "tool_search_output")
"""Items that become tools and calls, so that any provider can continue with them."""

_MENTION_OF_JSON: JsonObject = {
    "type": "message",
    "role": "developer",
    "content": [{"type": "input_text", "text": "Answer with a JSON object."}],
}
"""The adapter adds it if only a system message mentions JSON, because the API looks for the word in the input."""


@needs_recordings
def test_recorded_requests_are_written_again_as_they_were_sent() -> None:
    compared = 0
    for case in read_cases(FOLDER / "openai_responses.jsonl"):
        if case["response_status"] != 200:
            continue  # OpenAI refused it
        body: Any = case["request_body"]
        again = build(read_again(body), stream=body.get("stream") is True)
        for name in {*body, *again} - {*DIFFERENCES, "input", "tools", "reasoning"}:
            assert again.get(name) == body.get(name), (case["id"], name)
        assert (again.get("reasoning") or {}).items() >= {  # type: ignore[union-attr]
            (name, value) for name, value in (body.get("reasoning") or {}).items() if value is not None
        }, case["id"]
        given = body["input"] if isinstance(body["input"], list) else []
        of_items = [item for item in given if item.get("type") in _TOOLS_OF_ITEMS]
        others = [tool for tool in body.get("tools", ()) if tool["type"] == "namespace" or "execution" in tool]
        if of_items or others:
            continue  # see test_tools_among_the_items_are_tools_of_the_request
        assert _by_name(again.get("tools")) == _by_name(body.get("tools")), case["id"]
        kept = [_bare(item) for item in items_of(body) if not _is_alone(item, given)]
        written = [_bare(item) for item in items_of(again) if item != _MENTION_OF_JSON]
        assert written == [item for item in kept if item is not None], case["id"]
        compared += 1
    assert compared > 100


def _bare(item: JsonObject) -> JsonObject | None:
    """An item without the id of a call, which is sent back only with reasoning. None for a system message."""
    if item.get("role") == "system":
        return None
    is_call = item.get("type") == "function_call"
    return {name: value for name, value in item.items() if not (is_call and name == "id")}


def _is_alone(item: JsonObject, given: list[JsonObject]) -> bool:
    """Whether an item is the output of a call in the stored history."""
    calls = {each.get("call_id") for each in given if str(each.get("type")).endswith("_call")}
    return item.get("type") == "function_call_output" and item["call_id"] not in calls


def _by_name(tools: Json) -> list[JsonObject]:
    """The tools in a fixed order, because the adapter writes functions first. It also makes loose schemas
    strict.
    """
    found: list[JsonObject] = []
    for tool in tools if isinstance(tools, list) else []:
        assert isinstance(tool, dict)
        loose = ("strict", "parameters")
        found.append({name: value for name, value in tool.items() if name not in loose and value})
    return sorted(found, key=lambda tool: (str(tool["type"]), str(tool.get("name"))))


@needs_recordings
def test_recorded_replies_are_written_as_they_were_read() -> None:
    compared = 0
    for case in read_cases(FOLDER / "openai_responses.jsonl"):
        data: bytes = case["response_body"].encode()
        try:
            if case["streamed"]:
                reply, events = read_stream([data])
            else:
                reply = read_body(msgspec.json.decode(data))
                events = whole_events(reply, "m")
        except (AdapterError, msgspec.DecodeError):
            continue
        if reply.stop_reason is StopReason.PROVIDER_SPECIFIC:
            continue  # a status that is not one of OpenAI's
        asked = read_request(case["request_body"], {})
        links = not case["streamed"]
        assert plain(read_body(whole(reply, asked)), links=links) == plain(reply, links=links), case["id"]
        again, _ = read_stream([streamed(reply, events, asked)])
        assert _shown(again) == _shown(reply), case["id"]
        assert counts(again.usage) == counts(reply.usage)
        compared += 1
    assert compared > 150


def _shown(reply: CanonicalResponse) -> list[object]:
    """A reply without reasoning that has neither text nor a signature, because a stream has no event for it."""
    return [block for block in plain(reply, opaque=False) if block != (("thinking", ""), {})]

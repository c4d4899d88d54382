"""Round trips of the Messages API. The gateway reads the adapter's requests, and the adapter the gateway's
replies.

Recorded traffic runs if its folder is known (see `tests.support.recordings`).
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import CanonicalResponse
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.providers.anthropic.request import write_request
from callboard.adapters.replies.whole import whole_events
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message
from callboard.engine.gateway.messages_replies import WIRE
from callboard.engine.gateway.wire import ClientRequest, ReplyInfo
from tests.support.depth import each_nth_is_quick

from ..support.canonical_requests import canonical_requests
from ..support.recordings import FOLDER, fragments, make_adapter, needs_recordings, read_cases

INFO = ReplyInfo(id="01J", model="claude-opus-4-6", created=0, input_tokens=7)
MODELS = [
    "anthropic:claude-sonnet-4-5",
    "anthropic:claude-opus-4-6",
    "anthropic:claude-sonnet-4-20250514",
    "anthropic:m",
]
HI: JsonObject = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}


def sent_by_the_adapter(request: CanonicalRequest, *, stream: bool = False) -> JsonObject:
    call = write_request(request, provider="anthropic", options={"auto_cache": False}, stream=stream)
    sent: JsonObject = msgspec.json.decode(call.body)
    return sent


# --- Requests ---


@settings(max_examples=300)
@given(canonical_requests(MODELS), st.booleans())
def test_a_request_of_the_adapter_is_the_same_after_it_was_read(request: CanonicalRequest, stream: bool) -> None:
    try:
        sent = sent_by_the_adapter(request, stream=stream)
    except AdapterError:
        return  # this adapter refuses the request
    asked = WIRE.read_request(sent, {})
    again = sent_by_the_adapter(asked.request, stream=asked.stream)
    for rule in (_system_text, _own_tools_last, _nothing_said, _no_effort_of_its_own):
        rule(sent)
        rule(again)
    assert again == sent


# --- Replies ---


def read_by_the_adapter(data: bytes, mode: str, *, stream: bool) -> CanonicalResponse:
    """Read a reply with the adapter from bytes that arrive in pieces."""
    kind = "text/event-stream" if stream else "application/json"
    case: dict[str, Any] = {
        "response_status": 200,
        "response_headers": {"content-type": kind},
        "provider_host": "a",
    }
    adapter = make_adapter("anthropic", case, fragments(data, mode))
    request = CanonicalRequest(
        request_id="req_1", model="anthropic:claude-opus-4-6", messages=(Message.user("Hi"),), max_output_tokens=9
    )

    async def read() -> CanonicalResponse:
        if not stream:
            return await adapter.complete(request)
        reply = adapter.stream(request)
        async for _ in reply:
            pass
        assert reply.response is not None
        return reply.response

    return asyncio.run(read())


def meaning(response: CanonicalResponse) -> JsonObject:
    """The parts that must survive: content, stop reason and usage, without adapter data and without Callboard's
    ids.
    """
    usage = msgspec.structs.replace(response.usage, raw=None)
    content = [_bare(block) for block in response.content]
    said: JsonObject = msgspec.to_builtins([content, response.stop_reason, usage, response.provider_details])
    return said


def _bare(block: ContentBlock) -> ContentBlock:
    match block:
        case ToolUseBlock(provider_raw=raw):
            data = {} if raw is None else {name: value for name, value in raw.data.items() if name == "caller"}
            kept = ProviderRaw("", data) if data else None
            return msgspec.structs.replace(block, id="", provider_raw=kept)
        case ThinkingBlock() | RedactedThinkingBlock():
            return msgspec.structs.replace(block, provider_raw=None)
        case TextBlock(provider_raw=ProviderRaw(data=data)) | OpaqueBlock(provider_raw=ProviderRaw(data=data)):
            return msgspec.structs.replace(block, provider_raw=ProviderRaw("", data))
        case _:
            return block


def written(response: CanonicalResponse, events: list[StreamEvent], asked: ClientRequest | None = None) -> bytes:
    writer = WIRE.writer(asked or WIRE.read_request(HI, {}), INFO)
    data = writer.start()
    for event in events:
        data += writer.write(event)
    return data + writer.finish(response)


# --- Recorded traffic ---


def _nothing_said(body: JsonObject) -> None:
    """Remove fields that equal their default."""
    for tool in _objects(body.get("tools")):
        if tool.get("description") == "":
            del tool["description"]
    for message in _objects(body.get("messages")):
        for block in _objects(message.get("content")):
            if block.get("is_error") is False:
                del block["is_error"]
            match block:
                case {"type": "web_fetch_tool_result", "content": {"content": dict(document)}}:
                    document.pop("citations", None)  # null in replies
                case _:
                    pass


def _system_text(body: JsonObject) -> None:
    """Join a system text without breakpoints into one text."""
    given = body.get("system")
    if isinstance(given, list) and not any("cache_control" in part for part in _objects(given)):
        body["system"] = "\n\n".join(str(part["text"]) for part in _objects(given))


def _own_tools_last(body: dict[str, Any]) -> None:
    """Move the provider's own tools after the client's."""
    tools = body.get("tools")
    if isinstance(tools, list):
        body["tools"] = sorted(tools, key=lambda tool: "input_schema" not in tool)


def _no_effort_of_its_own(body: JsonObject) -> None:
    """Remove the default effort: adaptive thinking without an effort means high."""
    config, thinking = body.get("output_config"), body.get("thinking")
    if isinstance(config, dict) and config.get("effort") == "high":
        del config["effort"]
        if not config:
            del body["output_config"]
    if thinking == {"type": "adaptive"}:
        del body["thinking"]


def _later_instructions(body: dict[str, Any]) -> None:
    """Move system messages to the front, where all models accept them, and keep only their text."""
    said = [message for message in body["messages"] if message["role"] == "system"]
    parts = [block for message in said for block in message["content"] if block["type"] == "text"]
    body["messages"] = [message for message in body["messages"] if message["role"] != "system"]
    if parts:
        system = body.get("system", [])
        body["system"] = [*([{"type": "text", "text": system}] if isinstance(system, str) else system), *parts]


def _turns(body: dict[str, Any]) -> None:
    """Write text as a list of blocks, join messages of one role, and begin with a message of the user."""
    turns: list[dict[str, Any]] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if turns and turns[-1]["role"] == message["role"]:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": message["role"], "content": blocks})
    if turns and turns[0]["role"] == "assistant":
        added = "(The conversation starts with a message of the assistant.)"
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": added}]})
    body["messages"] = turns


ALLOWED = (_later_instructions, _nothing_said, _system_text, _own_tools_last, _no_effort_of_its_own, _turns)
"""The allowed differences between a body and its copy, each with its reason."""


def _objects(value: Json) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def recorded() -> list[dict[str, Any]]:
    if not FOLDER.is_dir():
        return []
    return [case for case in read_cases(FOLDER / "anthropic.jsonl") if case["path"].endswith("/messages")]


CASES = recorded()


@needs_recordings
@pytest.mark.parametrize("case", each_nth_is_quick(CASES, 5, "each recording"), ids=lambda case: case["id"])
def test_a_recorded_request_is_sent_as_it_came(case: Mapping[str, Any]) -> None:
    sent = copy.deepcopy(case["request_body"])
    asked = WIRE.read_request(sent, {})
    assert sent == case["request_body"]
    again = sent_by_the_adapter(asked.request, stream=asked.stream)
    for rule in ALLOWED:
        rule(sent)
        rule(again)
    assert again == sent


@needs_recordings
@pytest.mark.parametrize("rule", ALLOWED)
def test_each_allowed_difference_occurs(rule: Callable[[JsonObject], None]) -> None:
    def changes(body: JsonObject) -> bool:
        changed = copy.deepcopy(body)
        rule(changed)
        return changed != body

    assert any(changes(case["request_body"]) for case in CASES)


@needs_recordings
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["id"]) for case in CASES if case["response_status"] == 200]
)
def test_a_recorded_reply_is_the_same_to_a_client(case: Mapping[str, Any], stream: bool) -> None:
    body = case["response_body"].encode()
    adapter = make_adapter("anthropic", case, fragments(body, "whole"))
    asked = WIRE.read_request(case["request_body"], {})
    request = msgspec.structs.replace(asked.request, request_id="req_1", message_id="msg_1")
    events: list[StreamEvent] = []

    async def call() -> CanonicalResponse:
        if not case["streamed"]:
            return await adapter.complete(request)
        reply = adapter.stream(request)
        events.extend([event async for event in reply])
        assert reply.response is not None
        return reply.response

    response = asyncio.run(call())
    if stream and case["streamed"]:
        data = written(response, events, asked)
    elif stream:
        data = written(response, whole_events(response, "msg_1"), asked)
    else:
        data = msgspec.json.encode(WIRE.write_reply(asked, INFO, response))
    expected = meaning(response)
    read = meaning(read_by_the_adapter(data, "whole", stream=stream))
    if stream:
        kinds = ("tool_use",) if case["streamed"] else ("tool_use", "text")
        expected, read = _without_raw(expected, kinds), _without_raw(read, kinds)
    assert read == expected


def _without_raw(said: Any, kinds: tuple[str, ...]) -> Any:
    """The content without parts that a stream lacks: a call's caller, and citations of a plain reply."""
    for block in said[0]:
        if block["type"] in kinds:
            block["provider_raw"] = None
    return said

"""Chat Completions replies: emulated tools, text chunks, and differences between servers."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest, CanonicalResponse
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.openai_compatible.quirks import Quirks
from callboard.adapters.providers.openai_compatible.response import ChatNormaliser
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.whole import whole_events
from callboard.adapters.requests.emulation import call_schema, emulate, read_decision, read_response
from callboard.bus.errors import AdapterError, InvalidRequestError, ServerError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition, ended_well
from callboard.bus.values.usage import StopReason, TokenUsage

from ...support.fake_http import HANG, FakeReply, FakeTransport
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock, on_both
from ...support.wires.chat import DONE, STOP, USAGE, ask, body, chunk, reply

pytestmark = pytest.mark.anyio

LOOK = ToolDefinition(
    "look", "Look at it.", {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
)
CLOCK = ToolDefinition("clock", "Tell the time.", {"type": "object", "properties": {}})
PNG = b"\x89PNG\r\n\x1a\n"
RESULT = (
    Message.user("What is there?"),
    Message.assistant([TextBlock("Well."), ToolUseBlock("tu_1", "look", {"at": "Paris", "n": 1})]),
    Message.tool_result("tu_1", "Rain"),
)


def emulated(request: CanonicalRequest) -> CanonicalRequest:
    emulation = emulate(request)
    assert emulation is not None
    return emulation.request


def call_of(tool: ToolDefinition) -> JsonObject:
    arguments: JsonObject = {"additionalProperties": False, **tool.input_schema}
    properties: JsonObject = {"tool": {"type": "string", "enum": [tool.name]}, "arguments": arguments}
    required: Json = ["tool", "arguments"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def test_the_schema_allows_a_call_or_a_text() -> None:
    """With a free choice: each tool and a text. With a forced choice: only the tools, or only the named one."""
    answer: JsonObject = {
        "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
        "additionalProperties": False,
    }  # fmt: skip
    for choice, expected in (
        (None, {"anyOf": [call_of(LOOK), call_of(CLOCK), answer]}),
        (ToolChoice("auto"), {"anyOf": [call_of(LOOK), call_of(CLOCK), answer]}),
        (ToolChoice("required"), {"anyOf": [call_of(LOOK), call_of(CLOCK)]}),
        (ToolChoice("named", "look"), call_of(LOOK)),
    ):
        request = emulated(ask(tools=(LOOK, CLOCK), tool_choice=choice, system_prompt="Be brief."))
        assert request.output_schema == expected
        assert request.tools == ()
        assert request.tool_choice is None
        assert request.system_prompt is not None
        assert request.system_prompt.startswith("Be brief.\n\nYou can use these tools:\n- look: Look at it.")


def test_without_tool_choice_no_tools_are_offered() -> None:
    """The request is then a plain one. A request without tools is not changed."""
    emulation = emulate(ask(tools=(LOOK,), tool_choice=ToolChoice("none")))
    assert emulation is not None
    assert not emulation.constrained
    assert (emulation.request.output_schema, emulation.request.system_prompt) == (None, None)
    assert emulate(ask()) is None


@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("named", "look")])
def test_a_choice_without_its_tool_is_refused(choice: ToolChoice) -> None:
    """The request is refused before any network access."""
    tools = (CLOCK,) if choice.mode == "named" else ()
    with pytest.raises(InvalidRequestError):
        emulate(ask(*RESULT, tools=tools, tool_choice=choice))


def test_definitions_move_to_the_root() -> None:
    """References in a tool's schema still work, and two tools may have definitions of the same name."""
    place: JsonObject = {"Place": {"type": "string"}}
    schema: JsonObject = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Place"}}, "$defs": place}
    whole = call_schema((ToolDefinition("a", "", schema), ToolDefinition("b", "", schema)))
    assert whole["$defs"] == {"a.Place": {"type": "string"}, "b.Place": {"type": "string"}}
    assert b'"$ref":"#/$defs/b.Place"' in msgspec.json.encode(whole)


def test_after_a_result_the_model_is_asked_for_a_text() -> None:
    """Calls and results become text, the request for a text comes last, and there is no schema."""
    emulation = emulate(ask(*RESULT, tools=(LOOK,)))
    assert emulation is not None
    assert not emulation.constrained
    assert [
        (str(message.role), [block.text for block in message.content if isinstance(block, TextBlock)])
        for message in emulation.request.messages
    ] == [
        ("user", ["What is there?"]),
        ("assistant", ["Well.", "I will use the tool look (at: Paris, n: 1)."]),
        ("user", ["The tool look returned: Rain", "Now answer the question in plain words."]),
    ]
    forced = emulate(ask(*RESULT, tools=(LOOK,), tool_choice=ToolChoice("required")))
    assert forced is not None
    assert forced.constrained


def test_failures_and_images_of_results_become_text() -> None:
    failed = Message.tool_result("tu_1", [TextBlock("dark"), ImageBlock(data=PNG)], is_error=True)
    told = emulated(ask(*RESULT[:2], failed, Message.user("So?"))).messages[2].content
    assert told == (TextBlock("The tool look failed: dark"), ImageBlock(data=PNG))


@pytest.mark.parametrize(("text", "kind"), [
    ('{"tool": "look", "arguments": {"at": "Paris"}}', "call"),
    ('{"answer": "Rain"}', "answer"),
    ('{"answer": {"sky": "grey"}}', "answer"),
    ('{\n "tool": "look", "arguments": {"at": "Pa', "broken_call"),
    ('{"tool": "lo', "answer"),
    ("Rain, I think.", "answer"),
    ("[1]", "answer"),
    ("", "answer"),
])  # fmt: skip
def test_replies_are_read(text: str, kind: str) -> None:
    """A reply is a call, a text or an incomplete call. Anything else is a text."""
    assert read_decision(text).kind == kind


def response(text: str, stop: StopReason = StopReason.END_TURN) -> CanonicalResponse:
    return CanonicalResponse(
        request_id="req_1",
        model="local:x",
        provider="local",
        content=(ThinkingBlock("Hmm", None, ProviderRaw("local", {})), TextBlock(text)),
        stop_reason=stop,
        usage=TokenUsage(1, 1),
    )


def test_a_call_becomes_a_block() -> None:
    """An incomplete call keeps the reason of its reply and its text, and is marked."""
    called = read_response(response('{"tool": "look", "arguments": {"at": "Paris"}}'), FakeClock())
    assert (called.stop_reason, called.text) == (StopReason.TOOL_USE, "")
    (call,) = called.tool_uses
    assert (call.name, call.input, call.incomplete) == ("look", {"at": "Paris"}, False)
    cut = read_response(response('{"tool": "look", "arg', StopReason.MAX_TOKENS), FakeClock())
    assert cut.stop_reason is StopReason.MAX_TOKENS
    (call,) = cut.tool_uses
    assert (call.raw_arguments, call.incomplete) == ('{"tool": "look", "arg', True)
    assert read_response(response('{"answer": ""}'), FakeClock()).content == called.content[:1]


@pytest.mark.parametrize("stop", list(StopReason), ids=str)
def test_an_emulated_call_depends_on_the_end_of_its_reply(stop: StopReason) -> None:
    """Complete JSON does not prove that the model had finished."""
    called = read_response(response('{"tool": "look", "arguments": {}}', stop), FakeClock())
    assert called.stop_reason is (StopReason.TOOL_USE if ended_well(stop) else stop)
    assert [block.incomplete for block in called.tool_uses] == [not ended_well(stop)]


def test_complete_events_keep_the_invariants() -> None:
    """A response in complete pieces is a valid stream."""
    raw = ProviderRaw("local", {"x": 1})
    content: tuple[ContentBlock, ...] = (
        ThinkingBlock("Hmm", "c2ln", raw), ThinkingBlock("", None, raw), RedactedThinkingBlock("z", raw),
        TextBlock("Hi"), ToolUseBlock("tu_1", "look", {"at": 1}), OpaqueBlock("odd", raw),
    )  # fmt: skip
    events = whole_events(msgspec.structs.replace(response(""), content=content), "msg_1")
    assert check_stream(events).final_content == content


# -- through the adapter


def made(*replies: FakeReply, **options: Json) -> OpenAICompatibleAdapter:
    config = AdapterConfig(base_url="http://127.0.0.1:9", options=options or {"tools": "emulate"}, max_retries=0)
    return OpenAICompatibleAdapter(config, transport=FakeTransport(*replies), clock=FakeClock())


def said(text: str) -> FakeReply:
    return FakeReply(msgspec.json.encode(reply(content=text)), headers={"content-type": "application/json"})


def sent(adapter: OpenAICompatibleAdapter) -> dict[str, Json]:
    assert isinstance(adapter.client.transport, FakeTransport)
    value: JsonObject = msgspec.json.decode(adapter.client.transport.requests[-1].body)
    return value


async def test_plain_and_streamed_calls_give_the_same() -> None:
    """Both kinds of call send a request without streaming. The stream has complete events."""
    text = '{"tool": "look", "arguments": {"at": "Paris"}}'
    request = ask(tools=(LOOK,), message_id="msg_1")
    adapter = made(said(text), said(text))
    completed = await adapter.complete(request)
    async with adapter.stream(request) as stream:
        events = [event async for event in stream]
    last = check_stream(events)
    assert [(block.name, block.input) for block in completed.tool_uses] == [("look", {"at": "Paris"})]
    assert [block.input for block in last.final_content if isinstance(block, ToolUseBlock)] == [{"at": "Paris"}]
    assert stream.response is not None
    assert [warning.code for warning in stream.response.warnings] == ["tools_emulated"]
    assert {"stream", "tools", "tool_choice"}.isdisjoint(sent(adapter))
    assert "response_format" in sent(adapter)
    capabilities = adapter.get_capabilities("x")
    assert (capabilities.supports_tools, capabilities.supports_streaming_tool_calls) == (True, False)


async def test_a_text_after_a_result_is_streamed() -> None:
    """After a result there is no schema, so the text streams immediately."""
    adapter = made(FakeReply(body([chunk(content="Ra"), chunk(content="in"), STOP | {"usage": USAGE}, DONE])))
    stream = adapter.stream(ask(*RESULT, tools=(LOOK,)))
    assert len([event async for event in stream]) == 4
    assert stream.response is not None
    assert [warning.code for warning in stream.response.warnings] == ["tools_emulated"]
    assert sent(adapter)["stream"] is True


async def test_failures_are_raised_unchanged() -> None:
    """No event was delivered, so the call only raises the error. This includes an invalid choice."""
    adapter = made(FakeReply(b"", status=500))
    with pytest.raises(ServerError):
        _ = [event async for event in adapter.stream(ask(tools=(LOOK,)))]
    with pytest.raises(AdapterError):
        _ = [event async for event in adapter.stream(ask(tools=(LOOK,), tool_choice=ToolChoice("named", "x")))]


@on_both
async def test_a_cancelled_call_ends_its_stream() -> None:
    """The stream ends in order, without content."""
    adapter = made(FakeReply(HANG))
    events: list[StreamEvent] = []

    async def read() -> None:
        events.extend([event async for event in adapter.stream(ask(tools=(LOOK,)))])

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert await adapter.cancel("req_1")
    assert check_stream(events).stop_reason is StopReason.CANCELLED


# -- A streamed reply gives the same result if its chunks are read as text only or in general.


CHUNK_USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from(["a", "", None, "<think>b</think>", [{"type": "text", "text": "c"}]]),
        "role": st.just("assistant"),
        "refusal": st.sampled_from([None, "no"]),
        "reasoning": st.sampled_from([None, "d"]),
        "tool_calls": st.sampled_from([None, [CALL]]),
        "annotations": st.just([{"type": "url_citation"}]),
    },
)
CHOICE = st.fixed_dictionaries(
    {"delta": DELTA},
    optional={
        "index": st.sampled_from([0, 0, 1, None]),
        "logprobs": st.sampled_from([None, {"content": [{"token": "a"}]}]),
        "finish_reason": st.sampled_from([None, "stop"]),
        "content_filter_results": st.just({"hate": {"filtered": False}}),
        "matched_stop": st.just("x"),
    },
)
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(CHOICE, max_size=2)},
    optional={
        "id": st.sampled_from(["r1", "r2", ""]),
        "model": st.sampled_from(["m1", "m2", None]),
        "usage": st.sampled_from([None, CHUNK_USAGE]),
        "service_tier": st.sampled_from(["default", "flex", None]),
        "system_fingerprint": st.just("fp"),
        "citations": st.just(["https://example.com"]),
    },
)


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": {"content": said}}], **more}


def read(chunks: list[dict[str, Any]], quirks: Quirks) -> object:
    """The whole result of a stream."""
    reply = Assembler(
        message_id="m",
        provider="p",
        requested_model="asked",
        clock=FakeClock(),
        estimate_usage=lambda _: TokenUsage(0, 0),
    )
    normaliser = ChatNormaliser(reply, quirks)
    events = [
        event for chunk in chunks for event in normaliser.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    ]
    events += normaliser.feed(b"data: [DONE]\n\n") + normaliser.close()
    return [
        *events,
        *(reply.usage, reply.details, reply.warnings, reply.stop_reason, reply.response_id, reply.model),
        str(normaliser.error),
    ]


@given(st.lists(CHUNK, min_size=1, max_size=8), st.sampled_from(["off", "paired"]))
@example([text("a", service_tier="flex"), text("b", id="r2"), text("c", service_tier="flex")], "off")
@example([text("a"), {"choices": [{"index": 1, "delta": {"content": "z"}}]}, text("c")], "off")
@example([text("a"), text("b", service_tier="flex"), {"choices": [], "usage": CHUNK_USAGE}], "off")
@example([{"choices": [{"index": 0, "delta": {"content": "a"}}]}, text("b")], "off")
@example([text("a"), text("b", error={"message": "down"})], "off")
@example([text("a"), text("<think>b"), text("c</think>d")], "paired")
def test_a_stream_with_an_unknown_field_gives_the_same(chunks: list[dict[str, Any]], tags: Any) -> None:
    """With such a field, every chunk is read in general."""
    quirks = Quirks(think_tags=tags)
    assert read(chunks, quirks) == read([{**chunk, "unheard_of": 1} for chunk in chunks], quirks)


# -- Differences between the replies of servers: the content that they can stream.


@pytest.mark.parametrize(
    ("streams", "tools", "whole_pieces"),
    [("always", 1, False), ("without tools", 0, False), ("without tools", 1, True), ("never", 0, True)],
)
async def test_content_that_a_server_cannot_stream_comes_in_complete_events(
    streams: str, tools: int, whole_pieces: bool
) -> None:
    """The adapter makes a plain call. Its reply has the events of a stream."""
    streamed = FakeReply(body([chunk(content="Hi"), STOP, DONE]))
    adapter = made(said("Hi") if whole_pieces else streamed, quirks={"streams": streams})
    stream = adapter.stream(ask(tools=(ToolDefinition("look"),) * tools))
    events = [event async for event in stream]
    check_stream(events)
    assert [event.type for event in events] == ["message.start", "text.delta", "message.complete"]
    assert stream.response is not None
    assert stream.response.text == "Hi"
    assert sent(adapter).get("stream", False) is not whole_pieces
    can = adapter.capabilities
    assert (can.supports_streaming, can.supports_streaming_tool_calls) == (streams != "never", streams == "always")

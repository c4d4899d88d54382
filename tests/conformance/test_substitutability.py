"""Any adapter can stand in for any other: the same conversation has the same shape, whoever the provider is."""

from __future__ import annotations

import itertools

import anyio
import msgspec
import pytest

from adapters.contract import CanonicalRequest, ProviderAdapter
from bus.content import TextBlock, ThinkingBlock, ToolUseBlock
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CancelledError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StreamError,
)
from bus.json_types import JsonObject
from bus.messages import Message, ToolDefinition
from bus.stream_events import StreamEvent, ToolUseEnd, ToolUseInputDelta
from bus.usage import StopReason, UsageSource

from ..support.fake_http import HANG, FakeReply, FakeTransport
from ..support.invariants import check_stream
from ..support.virtual_time import FakeClock
from .wires import CALLING_WIRES, CALLS, WIRES, AnthropicWire, Wire, arguments

pytestmark = pytest.mark.anyio

each = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
each_that_calls = pytest.mark.parametrize("wire", CALLING_WIRES, ids=lambda wire: wire.name)

TOOLS = tuple(
    ToolDefinition(
        name,
        "A tool",
        {
            "type": "object",
            "properties": {key: {} for key in given},
            "required": list(given),
        },
    )
    for name, given in CALLS
)

REPLIES = [
    ("Hello, ☃!", 0, "end"),
    ("", 1, "tools"),
    ("Let me look.", 1, "tools"),
    ("Let me look.", 2, "tools"),
    ("Once upon a", 0, "length"),
    ("", 0, "end"),
]
REPLIES_OF = [
    pytest.param(wire, *said, id=f"{wire.name}-{said}") for wire in WIRES for said in REPLIES if wire.says(said[1])
]
STOPS = {"end": StopReason.END_TURN, "tools": StopReason.TOOL_USE, "length": StopReason.MAX_TOKENS}


def ask(wire: Wire, *messages: Message, **changes: object) -> CanonicalRequest:
    fields: dict[str, object] = {
        "request_id": "req_1",
        "messages": messages or (Message.user("Hello"),),
        "model": f"{wire.name}:some-model",
        "max_output_tokens": 64,
        "tools": TOOLS if wire.calls_tools else (),
        "message_id": "msg_1",
        **changes,
    }
    return CanonicalRequest(**fields)  # type: ignore[arg-type]


async def read(wire: Wire, reply: FakeReply) -> tuple[list[StreamEvent], AdapterError | None]:
    adapter = wire.make(FakeTransport(reply), FakeClock(), max_retries=0)
    events: list[StreamEvent] = []
    try:
        async for event in adapter.stream(ask(wire)):
            events.append(event)  # noqa: PERF401  (what came before an error counts)
    except AdapterError as error:
        return events, error
    return events, None


def sent(transport: FakeTransport, number: int = -1) -> JsonObject:
    body: JsonObject = msgspec.json.decode(transport.requests[number].body)
    return body


@each
async def test_it_satisfies_the_contract(wire: Wire) -> None:
    """All methods are there, and each model has capabilities."""
    adapter = wire.make(FakeTransport(), FakeClock())
    assert isinstance(adapter, ProviderAdapter)
    assert adapter.name == wire.name
    assert adapter.get_capabilities("nobody-knows-it").max_output_tokens > 0
    assert adapter.estimate_input_tokens([Message.user("Hello")], TOOLS, "Be brief.") > 0
    assert await adapter.cancel("req_unknown") is False
    await adapter.close()
    await adapter.close()


@pytest.mark.parametrize(("wire", "text", "calls", "stop"), REPLIES_OF)
async def test_the_same_reply_has_the_same_shape(wire: Wire, text: str, calls: int, stop: str) -> None:
    """Content, stop reason and usage; streamed or not."""
    adapter = wire.make(
        FakeTransport(wire.whole(text, calls, stop), wire.streamed(text, calls, stop)), FakeClock()
    )
    plain = await adapter.complete(ask(wire))
    stream = adapter.stream(ask(wire))
    last = check_stream([event async for event in stream])
    assert stream.response is not None
    for content, stop_reason, usage in (
        (plain.content, plain.stop_reason, plain.usage),
        (last.final_content, last.stop_reason, last.usage),
    ):
        expected: list[object] = [text] if text else []
        expected += [(name, given, False) for name, given in CALLS[:calls]]
        found = [
            block.text if isinstance(block, TextBlock) else (block.name, block.input, block.incomplete)
            for block in content
            if isinstance(block, TextBlock | ToolUseBlock)
        ]
        assert found == expected
        assert len(content) == len(expected)
        assert stop_reason is STOPS[stop]
        assert usage.cached_input_tokens == wire.cached_tokens
        assert (usage.total_input_tokens, usage.output_tokens) == (12, 7)
        assert usage.cache_creation_input_tokens == 0
        assert usage.source is UsageSource.REPORTED
    for response in (plain, stream.response):
        assert response.provider == wire.name
        assert response.model.startswith(f"{wire.name}:")
        assert response.raw_stop_reason
        assert (response.response_id is not None) is wire.has_response_ids


@pytest.mark.parametrize(("text", "calls", "stop"), REPLIES)
async def test_the_same_reply_is_the_same_events(text: str, calls: int, stop: str) -> None:
    """Type by type and index by index, with the same text; only fragments of arguments may be fewer."""
    sequences = []
    for wire in WIRES:
        if not wire.says(calls):
            continue
        events, error = await read(wire, wire.streamed(text, calls, stop))
        assert error is None
        sequence = [
            (event.type, getattr(event, "content_block_index", None), getattr(event, "text", None))
            for event in events
        ]
        sequences.append([one for one, _ in itertools.groupby(sequence)])
    assert len(sequences) >= len(CALLING_WIRES)
    for one, other in itertools.pairwise(sequences):
        assert one == other


@each_that_calls
async def test_fragments_are_the_providers_own(wire: Wire) -> None:
    """Literal pieces of JSON text, never a parsed object, and the end has what they add up to."""
    events, _ = await read(wire, wire.streamed("", 2, "tools"))
    for number in range(2):
        fragments = [
            event.partial_json
            for event in events
            if isinstance(event, ToolUseInputDelta) and event.content_block_index == number
        ]
        assert len(fragments) == wire.call_pieces
        assert "".join(fragments) == arguments(number)
    assert [event.final_input for event in events if isinstance(event, ToolUseEnd)] == [
        given for _, given in CALLS
    ]


CONDITIONS: dict[str, type[AdapterError]] = {
    "rate limit": RateLimitError,
    "overload": OverloadedError,
    "quota": QuotaExceededError,
    "bad key": AuthError,
    "forbidden": AccessDeniedError,
    "no model": NotFoundError,
    "overflow": ContextOverflowError,
    "bad request": InvalidRequestError,
    "server": ServerError,
}


@each
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_same_condition_is_the_same_error(wire: Wire, condition: str, streamed: bool) -> None:
    """The most specific exception, and with it class and retrying."""
    adapter = wire.make(FakeTransport(wire.failing(condition)), FakeClock(), max_retries=0)
    with pytest.raises(AdapterError) as raised:
        if streamed:
            async for _ in adapter.stream(ask(wire)):
                pytest.fail("an error reply has no events")
        else:
            await adapter.complete(ask(wire))
    error, kind = raised.value, CONDITIONS[condition]
    assert type(error) is kind
    assert error.error_class is kind.error_class
    assert error.retryable is kind.default_retryable
    assert (error.provider, error.request_id) == (wire.name, "req_1")
    assert error.provider_message


@each
async def test_an_error_in_a_stream_is_the_same_everywhere(wire: Wire) -> None:
    """After what was said, `message.complete(error)`; then the exception of its kind."""
    begun = wire.chunks("Hello")[: -wire.closing_events]
    events, error = await read(wire, FakeReply(*begun, wire.event(*wire.error_event())))
    last = check_stream(events)
    assert last.stop_reason is StopReason.ERROR
    (block,) = last.final_content
    assert isinstance(block, TextBlock)
    assert block.text in ("He", "Hello")  # how much had come depends on how many events its end takes
    assert isinstance(error, OverloadedError)
    assert error.content == last.final_content


@each
async def test_a_stream_cut_anywhere_ends_in_order(wire: Wire) -> None:
    """Never a hang, never an exception of another kind, and whole only if the protocol says so."""
    body = b"".join(wire.chunks("Hello, ☃!", 2, "tools"))
    for end in range(0, len(body), 7):
        events, error = await read(wire, FakeReply(body[:end]))
        if events:
            last = check_stream(events)
            assert (last.stop_reason is StopReason.ERROR) == (error is not None)
        if error is not None:
            assert isinstance(error, StreamError)


@each
async def test_no_cut_changes_the_events(wire: Wire) -> None:
    """Byte by byte is whole."""
    body = b"".join(wire.chunks("Hello, ☃!", 2, "tools"))
    reference, _ = await read(wire, FakeReply(body))
    for size in (1, 2, 3, 50):
        events, error = await read(wire, FakeReply(*[body[at : at + size] for at in range(0, len(body), size)]))
        assert error is None
        assert events == reference


@each
async def test_cancelling_anywhere_ends_in_order(wire: Wire) -> None:
    """What is open is closed and marked, the message is complete, nothing hangs, and the reply is closed."""
    chunks = wire.chunks("Hello", 2, "tools")
    total = len((await read(wire, FakeReply(*chunks)))[0])
    for stop_after in range(1, total):
        transport = FakeTransport(FakeReply(*chunks, HANG))
        adapter = wire.make(transport, FakeClock())
        stream = adapter.stream(ask(wire))
        events = [await anext(stream) for _ in range(stop_after)]
        was_running = await adapter.cancel("req_1")
        with anyio.fail_after(5):
            events += [event async for event in stream]
        last = check_stream(events)
        whole = StopReason.TOOL_USE if wire.calls_tools else StopReason.END_TURN
        assert last.stop_reason is (StopReason.CANCELLED if was_running else whole)
        assert await adapter.cancel("req_1") is False
        assert transport.all_closed


@each
async def test_a_cancelled_complete_raises(wire: Wire) -> None:
    """The same exception everywhere."""
    adapter = wire.make(FakeTransport(FakeReply(wait=HANG)), FakeClock())

    async def caller() -> None:
        with pytest.raises(CancelledError):
            await adapter.complete(ask(wire))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller)
        await anyio.sleep(1)
        assert await adapter.cancel("req_1") is True


@each_that_calls
async def test_a_providers_ids_come_back_to_it(wire: Wire) -> None:
    """Call and result carry the very id that it issued; ours is another."""
    transport = FakeTransport(wire.whole("", 2, "tools"), wire.whole("Done."))
    adapter = wire.make(transport, FakeClock())
    reply = await adapter.complete(ask(wire))
    results = [Message.tool_result(call.id, "ok") for call in reply.tool_uses]
    await adapter.complete(ask(wire, Message.user("Hello"), Message.assistant(reply.content), *results))
    issued = [call.provider_raw.data["id"] for call in reply.tool_uses if call.provider_raw is not None]
    assert len(issued) == 2
    assert all(call.id.startswith("tu_") for call in reply.tool_uses)
    assert wire.ids(sent(transport)) == (issued, issued)


@pytest.mark.parametrize("there", CALLING_WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("here", CALLING_WIRES, ids=lambda wire: wire.name)
async def test_a_conversation_with_tools_survives_a_swap(here: Wire, there: Wire) -> None:
    """Every call keeps its answer abroad, and on the way back the first provider finds its own ids."""
    first, second = FakeTransport(here.whole("", 2, "tools"), here.whole("Done.")), FakeTransport(
        there.whole("And?", 1, "tools"), there.whole("Fine.")
    )  # fmt: skip
    home, abroad = here.make(first, FakeClock()), there.make(second, FakeClock(epoch_us=1))
    abroad.clock._ids = 100  # type: ignore[attr-defined]  # ids of two adapters never meet in one history
    history = [Message.user("Hello")]
    reply = await home.complete(ask(here, *history))
    history += [
        Message.assistant(reply.content),
        *[Message.tool_result(call.id, "ok") for call in reply.tool_uses],
        Message.user("Go on"),
    ]
    reply = await abroad.complete(ask(there, *history))
    calls, results = there.ids(sent(second))
    assert calls == results
    assert len(set(calls)) == 2
    history += [
        Message.assistant(reply.content),
        *[Message.tool_result(call.id, "ok") for call in reply.tool_uses],
    ]
    await home.complete(ask(here, *history))
    calls, results = here.ids(sent(first))
    assert calls == results
    assert len(set(calls)) == 3
    assert calls[:2] == here.ids_issued(2)


@each_that_calls
@pytest.mark.parametrize("there", [wire for wire in WIRES if not wire.calls_tools], ids=lambda wire: wire.name)
async def test_a_conversation_with_tools_survives_one_who_has_none(wire: Wire, there: Wire) -> None:
    """Abroad the calls are told in words; at home nothing was lost, and the ids are the ones that it issued."""
    first = FakeTransport(wire.whole("", 2, "tools"), wire.whole("Done."))
    second = FakeTransport(there.whole("Fine."))
    home, abroad = wire.make(first, FakeClock()), there.make(second, FakeClock(epoch_us=1))
    history = [Message.user("Hello")]
    reply = await home.complete(ask(wire, *history))
    history += [
        Message.assistant(reply.content),
        *[Message.tool_result(call.id, "a result") for call in reply.tool_uses],
    ]
    answer = await abroad.complete(ask(there, *history, tools=TOOLS))
    said = second.requests[0].body.decode()
    assert all(name in said for name, _ in CALLS)
    assert "a result" in said
    assert not any(issued in said for issued in wire.ids_issued(2))
    history += [Message.assistant(answer.content), Message.user("And now?")]
    await home.complete(ask(wire, *history))
    assert wire.ids(sent(first)) == (wire.ids_issued(2), wire.ids_issued(2))
    assert "Fine." in first.requests[-1].body.decode()


@each_that_calls
async def test_an_interrupted_call_is_answered_before_it_is_sent(wire: Wire) -> None:
    """A cancelled reply in the history never makes the next request invalid."""
    chunks = wire.chunks("", 1, "tools")
    cut = FakeTransport(FakeReply(*chunks[: min(4, len(chunks) - 1)], HANG), wire.whole("Sorry."))
    adapter = wire.make(cut, FakeClock())
    stream = adapter.stream(ask(wire))
    events = [await anext(stream), await anext(stream)]
    await adapter.cancel("req_1")
    events += [event async for event in stream]
    content = check_stream(events).final_content
    assert isinstance(content[0], ToolUseBlock)
    assert content[0].incomplete or wire.call_pieces == 1  # a call that comes whole can't be cut
    await adapter.complete(ask(wire, Message.user("Hello"), Message.assistant(content), Message.user("Again")))
    calls, results = wire.ids(sent(cut))
    assert calls == results
    assert len(calls) == 1


async def test_reasoning_stays_with_who_reasoned() -> None:
    """It goes back to its provider with its signature, and to nobody else."""
    thinker = AnthropicWire()
    body = thinker.body("So.", 0, "end")
    body["content"] = [{"type": "thinking", "thinking": "a secret thought", "signature": "c2ln"}, *body["content"]]
    reply = FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})
    response = await thinker.make(FakeTransport(reply), FakeClock()).complete(ask(thinker))
    assert isinstance(response.content[0], ThinkingBlock)
    history = (Message.user("Hello"), Message.assistant(response.content), Message.user("And?"))
    for wire in WIRES:
        transport = FakeTransport(wire.whole("Yes."))
        answer = await wire.make(transport, FakeClock()).complete(ask(wire, *history))
        goes_back = wire.name == thinker.name
        assert (b"a secret thought" in transport.requests[0].body) is goes_back
        assert (b"c2ln" in transport.requests[0].body) is goes_back
        assert any(warning.code == "content_dropped" for warning in answer.warnings) is not goes_back


@each
async def test_the_key_is_in_one_header_and_nowhere_else(wire: Wire) -> None:
    """Not in the address, not in the body."""
    transport = FakeTransport(wire.whole("Hi."))
    await wire.make(transport, FakeClock()).complete(ask(wire))
    (request,) = transport.requests
    assert sum("sk-conformance" in value for value in request.headers.values()) == 1
    assert "sk-conformance" not in request.url
    assert b"sk-conformance" not in request.body


@each
async def test_the_request_says_what_was_asked(wire: Wire) -> None:
    """Model, limit, system text, tools and the wish for usage, on every wire."""
    transport = FakeTransport(wire.streamed("Hi."))
    adapter = wire.make(transport, FakeClock())
    asked = ask(wire, system_prompt="Be brief.", max_output_tokens=77)
    check_stream([event async for event in adapter.stream(asked)])
    body = sent(transport)
    text = msgspec.json.encode(body).decode()
    model, streamed, limit = wire.asked(transport.requests[0])
    assert model in ("some-model", None)
    assert streamed
    assert limit == 77
    for part in ("Be brief.", "Hello", *([tool.name for tool in TOOLS] if wire.calls_tools else ())):
        assert part in text

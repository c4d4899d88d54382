"""Any adapter can stand in for any other: one conversation, whoever the provider is.

What each adapter must do by itself is in the conformance kit (`test_kits`); this is what only several can show.
"""

from __future__ import annotations

import itertools

import msgspec
import pytest

from callboard.adapters.conformance import CALLS, TOOLS
from callboard.adapters.contract import CanonicalRequest
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.messages import Message

from ..support.fake_http import HANG, FakeReply, FakeTransport
from ..support.invariants import check_stream
from ..support.virtual_time import FakeClock
from ..support.wires import CALLING_WIRES, WIRES, Wire

pytestmark = pytest.mark.anyio

each = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
each_that_calls = pytest.mark.parametrize("wire", CALLING_WIRES, ids=lambda wire: wire.name)

REPLIES = [
    ("Hello, ☃!", 0, "end"),
    ("", 1, "tools"),
    ("Let me look.", 1, "tools"),
    ("Let me look.", 2, "tools"),
    ("Once upon a", 0, "length"),
    ("", 0, "end"),
]


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
async def test_a_response_keeps_the_providers_own_words(wire: Wire) -> None:
    """Its id of the response, and its reason to stop; streamed or not."""
    adapter = wire.make(FakeTransport(wire.whole("Hi."), wire.streamed("Hi.")), FakeClock())
    stream = adapter.stream(ask(wire))
    for response in (await adapter.complete(ask(wire)), [event async for event in stream] and stream.response):
        assert response.raw_stop_reason
        assert (response.response_id is not None) is wire.has_response_ids


@pytest.mark.parametrize(("text", "calls", "stop"), REPLIES)
async def test_the_same_reply_is_the_same_events(text: str, calls: int, stop: str) -> None:
    """Type by type and index by index, with the same text; only fragments of arguments may be fewer."""
    sequences = []
    for wire in WIRES if not calls else CALLING_WIRES:
        events, error = await read(wire, wire.streamed(text, calls, stop))
        assert error is None
        sequence = [
            (event.type, getattr(event, "content_block_index", None), getattr(event, "text", None))
            for event in events
        ]
        sequences.append([one for one, _ in itertools.groupby(sequence)])
    for one, other in itertools.pairwise(sequences):
        assert one == other


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
    cut = FakeTransport(wire.stream_of(*chunks[: min(4, len(chunks) - 1)], HANG), wire.whole("Sorry."))
    adapter = wire.make(cut, FakeClock())
    stream = adapter.stream(ask(wire))
    events = [await anext(stream), await anext(stream)]
    await adapter.cancel("req_1")
    events += [event async for event in stream]
    content = check_stream(events).final_content
    assert isinstance(content[0], ToolUseBlock)
    assert content[0].incomplete
    await adapter.complete(ask(wire, Message.user("Hello"), Message.assistant(content), Message.user("Again")))
    calls, results = wire.ids(sent(cut))
    assert calls == results
    assert len(calls) == 1

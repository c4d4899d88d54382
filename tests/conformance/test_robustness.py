"""Whatever a provider or a proxy sends: a message in order, or an AdapterError; never anything else."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.contract import CanonicalRequest
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason

from ..support.fake_http import FakeReply, FakeTransport
from ..support.invariants import check_stream
from ..support.virtual_time import FakeClock, run_virtual
from ..support.wires import WIRES, Wire

each = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)

ASKED = CanonicalRequest(
    request_id="req_1",
    messages=(Message.user("Hello"),),
    model="x:some-model",
    max_output_tokens=64,
    message_id="msg_1",
    max_retries=0,
)

NONSENSE = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        7,
        1.5,
        2**40,
        "",
        "x",
        "\u2028",
        "{",
        [],
        {},
        [None],
        [{}],
        {"type": "x"},
        {"text": 1},
        [[]],
    ]
)


def places(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place inside a JSON value."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


def changed(value: Json, path: tuple[str | int, ...], new: Json, *, leave_out: bool) -> Json:
    """A copy with another value at one place, or without it."""
    if not path:
        return new
    copy = msgspec.json.decode(msgspec.json.encode(value))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    if leave_out:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return copy


def mutate(value: Json, draw: st.DataObject) -> Json:
    path = draw.draw(st.sampled_from(list(places(value))))
    return changed(value, path, draw.draw(NONSENSE), leave_out=draw.draw(st.booleans()))


async def consume(wire: Wire, reply: FakeReply) -> None:
    """Stream it, and check all that must hold whatever it is."""
    transport = FakeTransport(reply)
    adapter = wire.make(transport, FakeClock())
    events: list[StreamEvent] = []
    failure: AdapterError | None = None
    try:
        async for event in adapter.stream(ASKED):
            events.append(event)  # noqa: PERF401  (what came before an error counts)
    except AdapterError as error:
        failure = error
    assert transport.all_closed
    assert failure is None or failure.request_id == "req_1"
    if events:
        last = check_stream(events)
        msgspec.json.encode(last.final_content)
        assert failure is not None or last.stop_reason is not StopReason.CANCELLED
        if failure is not None:
            assert last.stop_reason is StopReason.ERROR


@each
@settings(max_examples=150)
@given(draw=st.data())
def test_a_stream_with_nonsense_in_it(wire: Wire, draw: st.DataObject) -> None:
    """Any field of any event replaced or left out, events dropped, repeated and out of order."""
    events = list(wire.events("Hello, ☃!", *wire.most))
    order = draw.draw(st.sampled_from(["kept", "dropped", "repeated", "swapped"]))
    at = draw.draw(st.integers(0, len(events) - 2))
    if order == "dropped":
        del events[at]
    elif order == "repeated":
        events.insert(at, events[at])
    elif order == "swapped":
        events[at], events[at + 1] = events[at + 1], events[at]
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(events) - 1))
        name, data = events[at]
        if not isinstance(data, str):
            events[at] = (name, mutate(data, draw))
    body = [wire.write_event(name, data) for name, data in events]
    run_virtual(lambda: consume(wire, wire.stream_of(*body)))


@each
@settings(max_examples=100)
@given(draw=st.data())
def test_a_whole_reply_with_nonsense_in_it(wire: Wire, draw: st.DataObject) -> None:
    """A response, or an AdapterError."""
    body = mutate(wire.body("Hello, ☃!", *wire.most), draw)

    async def ask() -> None:
        reply = FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})
        try:
            response = await wire.make(FakeTransport(reply), FakeClock()).complete(ASKED)
        except AdapterError:
            return
        msgspec.json.encode(response.content)
        assert response.usage.output_tokens >= 0

    run_virtual(ask)


@each
@settings(max_examples=60)
@given(draw=st.data())
def test_an_error_with_nonsense_in_it(wire: Wire, draw: st.DataObject) -> None:
    """Always an AdapterError with a text."""
    status, body = wire.error_body(draw.draw(st.sampled_from(["overload", "bad request"])))
    body = mutate(body, draw)

    async def ask() -> None:
        reply = FakeReply(msgspec.json.encode(body), status=status, headers={"content-type": "application/json"})
        with pytest.raises(AdapterError) as raised:
            await wire.make(FakeTransport(reply), FakeClock()).complete(ASKED)
        assert str(raised.value)

    run_virtual(ask)


@each
@settings(max_examples=60)
@given(st.data())
def test_a_stream_with_broken_bytes(wire: Wire, draw: st.DataObject) -> None:
    """Bytes replaced, lost and added anywhere."""
    body = bytearray(b"".join(wire.chunks("Hello, ☃!", *wire.most)))
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(body) - 1))
        body[at : at + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=3))
    run_virtual(lambda: consume(wire, wire.stream_of(bytes(body))))

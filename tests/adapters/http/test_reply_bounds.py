"""A reply has limits of memory and time, and a call leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping

import anyio
import pytest
import trio

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http import stream as http_stream
from callboard.adapters.http.call import HttpCall
from callboard.adapters.http.stream import KEPT_ALIVE, HttpStream
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.errors import AdapterError, RequestTimeoutError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import StopReason

from ...support.fake_http import MORE, TEXT, FakeReply, FakeTransport, ToyAdapter, request, sse
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock, VirtualLoop
from ...support.wires import WIRES, Wire
from ..replies.test_broken_json import ask

pytestmark = pytest.mark.anyio

COMMENT = b": keep-alive\n\n"


def pass_time(seconds: float) -> None:
    """Advance the time without running other tasks."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(seconds)
    else:
        assert isinstance(loop, VirtualLoop)
        loop.now += seconds


class EndlessReply:
    """A reply whose next piece is always available. Each piece takes half a second."""

    status = 200
    headers: Mapping[str, str] = {"content-type": "text/event-stream"}

    def __init__(self, piece: bytes) -> None:
        self.piece = piece
        self.read = 0

    async def chunk(self) -> bytes | None:
        pass_time(0.5)
        self.read += 1
        return self.piece

    async def aclose(self) -> None:
        pass


class EndlessTransport:
    def __init__(self, piece: bytes) -> None:
        self.reply = EndlessReply(piece)
        self.sent = 0

    async def send(self, request: HttpRequest) -> HttpReply:
        self.sent += 1
        return self.reply

    async def aclose(self) -> None:
        pass


def toy(transport: FakeTransport | EndlessTransport, **config: object) -> ToyAdapter:
    settings = AdapterConfig(**config)  # type: ignore[arg-type]
    return ToyAdapter(settings, transport=transport, clock=FakeClock(randomness=0.0))


async def iterated(stream: HttpStream, take: Callable[[StreamEvent], object]) -> None:
    async for event in stream:
        take(event)


async def pumped(stream: HttpStream, take: Callable[[StreamEvent], object]) -> None:
    await stream.pump(lambda events: [take(event) for event in events])


async def outcome(stream: HttpStream, *, pump: bool) -> tuple[list[StreamEvent], AdapterError]:
    """Read a stream that fails. Returns its events and its error."""
    events: list[StreamEvent] = []
    with pytest.raises(AdapterError) as raised:
        await (pumped if pump else iterated)(stream, events.append)
    return events, raised.value


@pytest.mark.parametrize("pump", [False, True])
async def test_a_stream_that_never_yields_ends_at_its_time_limit(pump: bool) -> None:
    """The limit is checked with each piece, because available pieces need no waiting."""
    transport = EndlessTransport(sse(TEXT))
    events, error = await outcome(toy(transport, timeout_seconds=10).stream(request()), pump=pump)
    assert isinstance(error, RequestTimeoutError)
    assert "longer than 10 s" in str(error)
    assert check_stream(events).stop_reason is StopReason.ERROR
    assert anyio.current_time() <= 11.0


@pytest.mark.parametrize("pump", [False, True])
async def test_comments_that_never_yield_end_with_the_limit_of_an_event(pump: bool) -> None:
    """Comments that arrive one by one also end with the limit."""
    transport = EndlessTransport(COMMENT)
    _, error = await outcome(toy(transport, first_event_timeout=2, max_retries=0).stream(request()), pump=pump)
    assert isinstance(error, RequestTimeoutError)
    assert anyio.current_time() <= 2 * KEPT_ALIVE + 1


@pytest.mark.parametrize("pump", [False, True])
@pytest.mark.parametrize("piece", [sse(TEXT), COMMENT])
async def test_a_stream_of_any_content_has_one_limit(
    pump: bool, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For valid deltas and for comments, the stream ends with the received content, and there is no retry."""
    monkeypatch.setattr(http_stream, "MAX_REPLY_BYTES", 2000)
    transport = EndlessTransport(piece)
    events, error = await outcome(toy(transport).stream(request()), pump=pump)
    assert isinstance(error, StreamError)
    assert "larger than" in str(error)
    assert not error.retryable
    assert (transport.sent, transport.reply.read) == (1, 2000 // len(piece) + 1)
    if piece == COMMENT:
        assert events == []
    else:
        assert check_stream(events).stop_reason is StopReason.ERROR
        assert error.content


@pytest.mark.parametrize("pump", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_comments_keep_a_stream_alive_for_a_limited_time(pump: bool, begun: bool) -> None:
    """The limit is five times the limit of an event, before the first event and after it."""
    steps = [sse(TEXT)] if begun else []
    transport = FakeTransport(FakeReply(*steps, *[4.0, COMMENT] * 1000))
    limits = {"stream_read_timeout" if begun else "first_event_timeout": 5}
    _, error = await outcome(toy(transport, max_retries=0, **limits).stream(request()), pump=pump)
    assert isinstance(error, RequestTimeoutError)
    assert "25 s" in str(error)
    assert anyio.current_time() == pytest.approx(25.0)
    assert transport.all_closed


@pytest.mark.parametrize("pump", [False, True])
async def test_an_event_between_comments_restarts_the_limit(pump: bool) -> None:
    """A slow model with occasional events is not cut off."""
    steps = [*[4.0, COMMENT] * 5, sse(MORE)] * 20
    transport = FakeTransport(FakeReply(sse(TEXT), *steps, sse({"is": "done", "stop": "end_turn"})))
    stream = toy(transport, stream_read_timeout=5).stream(request())
    events: list[StreamEvent] = []
    await (pumped if pump else iterated)(stream, events.append)
    assert check_stream(events).stop_reason is StopReason.END_TURN
    assert anyio.current_time() == pytest.approx(400.0)


# -- The objects of a call are freed with its last reference, without the garbage collector.
#
# A request has a whole conversation, and a reply may be large.


async def called(wire: Wire, reply: FakeReply, *, streamed: bool) -> None:
    adapter = wire.make(FakeTransport(reply), FakeClock(), max_retries=0)
    if not streamed:
        await adapter.complete(ask(wire))
        return
    async with adapter.stream(ask(wire)) as stream:
        async for _ in stream:
            pass


@pytest.mark.parametrize("ending", ["whole", "streamed", "broken off"])
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_a_call_leaves_no_circle_of_references(wire: Wire, ending: str) -> None:
    chunks = wire.chunks("Well, a walrus.", 0)
    streams = {"streamed": wire.stream_of(*chunks), "broken off": wire.stream_of(*chunks[:-2])}
    reply = streams.get(ending) or wire.whole("Well, a walrus.")
    gc.freeze()  # existing objects are not examined
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        try:
            await called(wire, reply, streamed=ending != "whole")
        except AdapterError as error:
            error.__traceback__ = None
        gc.collect()
        found = {type(each).__name__ for each in gc.garbage if isinstance(each, HttpCall | HttpStream | Assembler)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    assert found == set()

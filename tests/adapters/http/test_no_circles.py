"""What a call leaves behind is gone with its last reference, and needn't wait for the garbage collector.

A request holds a whole conversation, and a reply may be large.
"""

from __future__ import annotations

import gc

import pytest

from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport
from callboard.adapters.http.call import HttpCall
from callboard.adapters.http.stream import HttpStream
from callboard.adapters.replies.assembler import Assembler
from callboard.bus.errors import AdapterError

from ...support.virtual_time import FakeClock
from ...support.wires import WIRES, Wire
from ..replies.test_broken_json import ask

pytestmark = pytest.mark.anyio


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
    """However it ended."""
    chunks = wire.chunks("Well, a walrus.", 0)
    streams = {"streamed": wire.stream_of(*chunks), "broken off": wire.stream_of(*chunks[:-2])}
    reply = streams.get(ending) or wire.whole("Well, a walrus.")
    gc.freeze()  # what is there already isn't looked at
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

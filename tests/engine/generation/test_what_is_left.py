"""What is left of a turn that is over: nothing, however it was asked for and whatever it ended in.

An error knows the frames that it went through, and with them what their functions had at hand: whoever keeps an
error keeps all of that.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from callboard.adapters import AdapterError
from callboard.engine import Engine, ObjectStream, StreamResult, TurnStream
from callboard.engine.conversation.turn import Turn
from callboard.engine.sessions.session import Session
from tests.support.engines import running
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio

Way = Callable[[Engine, bool], Awaitable[object]]


async def _generate(engine: Engine, cancelled: bool) -> object:
    return await engine.generate("s:m", "Hi", timeout=0.0 if cancelled else None)


async def _send(engine: Engine, cancelled: bool) -> object:
    return await engine.session("s:m").send("Hi", timeout=0.0 if cancelled else None)


async def _stream(engine: Engine, cancelled: bool) -> object:
    async with engine.stream("s:m", "Hi") as stream:
        if cancelled:
            await stream.cancel()
        return [event async for event in stream]


async def _stream_of_a_session(engine: Engine, cancelled: bool) -> object:
    async with engine.session("s:m").stream("Hi") as stream:
        if cancelled:
            await stream.cancel()
        return [event async for event in stream]


async def _reader(engine: Engine, cancelled: bool) -> object:
    async with engine.stream("s:m", "Hi") as stream:
        reader = stream.reader()
        if cancelled:
            await stream.cancel()
        return [text async for text in reader.text_stream]


async def _attached(engine: Engine, cancelled: bool) -> object:
    async with engine.stream("s:m", "Hi") as stream:
        view = engine.attach(stream.stream_id, view=True)
        if cancelled:
            await stream.cancel()
        return [event async for event in view], await stream.message()


async def _object(engine: Engine, cancelled: bool) -> object:
    async with engine.stream_object("s:m", "Who?", schema=dict) as stream:
        if cancelled:
            await stream.aclose()
        return await stream.object()


WAYS = (_generate, _send, _stream, _stream_of_a_session, _reader, _attached, _object)


@pytest.mark.parametrize("ending", ["well", "broken", "cancelled"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_nothing_is_left_of_a_turn(way: Way, ending: str) -> None:
    """Neither the turn nor its stream nor its session, while the engine lives on."""
    async with running(*([] if ending == "broken" else [Say("{}")])) as (engine, _):
        before = [weakref.ref(each) for each in _alive()]
        try:
            await way(engine, ending == "cancelled")
            ended = "well"
        except AdapterError:
            ended = "not well"
        assert (ended == "well") is (ending == "well")
        known = {id(each()) for each in before}
        assert [each for each in _alive() if id(each) not in known] == []


def _alive() -> list[object]:
    """What turns are made of, as far as anybody has it."""
    gc.collect()
    kinds = (Turn, StreamResult, TurnStream, ObjectStream, Session)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]
